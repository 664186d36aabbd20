"""Giving up a message: one that was delivered too often, or whose body is not valid.

A message is finished only after what the consumer's `giving_up` says was done; if that fails, it is
requeued. Knows dead letters; must not know connections or handlers.
"""

import asyncio
import inspect
import logging
from functools import partial

from pumpline.client.consuming.arguments import DEAD_LETTER, DROP, GivingUp, OnGivingUp
from pumpline.client.consuming.codec import InvalidBodyError
from pumpline.client.consuming.dead_letters import DeadLetterPublisher, has_dead_letters
from pumpline.client.consuming.handling import log_body
from pumpline.client.consuming.message import Message
from pumpline.client.consuming.subscription import Counters
from pumpline.client.errors import PumplineError
from pumpline.client.settings import Settings

logger = logging.getLogger("pumpline.client")


class GiverUp:
    def __init__(
        self, topic: str, channel: str, settings: Settings, giving_up: GivingUp, counters: Counters
    ) -> None:
        _check(giving_up)
        self.keeps_all = giving_up == DEAD_LETTER and not has_dead_letters(topic)
        """The topic can have no dead-letter topic: no message is given up."""
        self.tasks: asyncio.TaskGroup  # from the start on
        self._giving_up = giving_up
        self._dead_letters = DeadLetterPublisher(topic, channel, settings)
        self._counters = counters

    def give_up(self, message: Message) -> None:
        """A message was delivered too often."""
        logger.warning("giving up %r", message)
        self._end(message, "")

    def reject(self, message: Message, error: Exception) -> None:
        """A body could not be decoded."""
        if not isinstance(error, InvalidBodyError):
            logger.error("the codec failed on %r", message, exc_info=error)
            message.requeue()
        elif self.keeps_all:
            logger.warning("%r is not valid, and is requeued: %s", message, error)
            message.requeue(backoff=False)
        else:
            logger.warning("giving up %r, which is not valid: %s", message, error)
            self._end(message, str(error))

    async def close(self) -> None:
        await self._dead_letters.close()

    def _end(self, message: Message, reason: str) -> None:
        self._counters.given_up += 1
        log_body(message)
        if self._giving_up == DROP:
            message.finish()
        elif self._giving_up == DEAD_LETTER:
            publish = partial(self._dead_letters.publish, reason=reason)
            self.tasks.create_task(_finish_after(publish, message))
        else:
            self.tasks.create_task(_finish_after(self._giving_up, message))


async def _finish_after(giving_up: OnGivingUp, message: Message) -> None:
    try:
        outcome = giving_up(message)
        if inspect.isawaitable(outcome):
            await outcome
    except PumplineError as error:
        logger.error("%r was not given up, and is requeued: %s", message, error)
        message.requeue()
    except Exception:  # a user's function: the message must not be lost by it
        logger.exception("giving_up failed on %r", message)
        message.requeue()
    except BaseException:
        message.requeue(0, backoff=False)
        raise
    else:
        message.finish()


def _check(giving_up: object) -> None:
    if giving_up not in (DEAD_LETTER, DROP) and not callable(giving_up):
        raise TypeError(f"giving_up is {DEAD_LETTER!r}, {DROP!r} or a function, not {giving_up!r}")
