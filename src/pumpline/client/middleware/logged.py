"""Middleware that logs: one line for each publish, and one for each message that was handled.

    handled <Message 0a1b… of orders/billing attempts=1 bytes=14>: ok in 12.3 ms
    published 3 messages to orders: ok in 0.8 ms

Bodies are not logged: they may be confidential.
"""

import logging
import time
from typing import Any

from pumpline.client.around import Around, CallNext
from pumpline.client.middleware.observed import OK, Observed, message_count, outcome_of
from pumpline.client.publishing.outgoing import Outgoing


def logged(logger: logging.Logger | None = None, *, level: int = logging.INFO) -> Around[Any]:
    """
    logger      by default `pumpline.client.messages`
    level       of lines about what went well; an error is logged as WARNING, without a traceback
    """
    log = logger or logging.getLogger("pumpline.client.messages")

    async def around(subject: Observed, call_next: CallNext[Observed]) -> None:
        began = time.perf_counter()
        outcome = OK
        try:
            await call_next(subject)
        except BaseException as error:
            kind = outcome_of(error)
            outcome = f"{kind}, {type(error).__name__}: {error}" if kind == "error" else kind
            raise
        finally:
            at = logging.WARNING if outcome.startswith("error") else level
            ms = 1000 * (time.perf_counter() - began)
            log.log(at, "%s: %s in %.1f ms", _named(subject), outcome, ms)

    return around


def _named(subject: Observed) -> str:
    if not isinstance(subject, Outgoing):
        return f"handled {subject!r}"
    count = message_count(subject)
    messages = "messages" if count is None else f"{count} message{'s' * (count != 1)}"
    return f"published {messages} to {subject.topic}"
