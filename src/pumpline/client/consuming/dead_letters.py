"""Dead letters of a consumer: messages that it gives up, published to the dead-letter topic.

A letter goes to the nsqd that the message came from, on a connection of its own, because an nsqd
that refuses the publish closes the connection. It has the form `json` of nsqd's own dead letters,
so nsqadmin and `pumpline deadletters` show it and publish it again. A letter that nsqd refuses as
too large is the body alone, which was published before.

Only what nsqd has confirmed is published; anything else raises, and the caller requeues the
message. Knows nothing of attempts.
"""

import asyncio
from collections import defaultdict

from pumpline.client.connection.connection import NsqdConnection
from pumpline.client.consuming.message import Message
from pumpline.client.errors import ServerError
from pumpline.client.settings import Settings
from pumpline.core.messages.dead_letter import dead_letter
from pumpline.core.protocol import commands
from pumpline.core.text.names import dead_letter_topic_of, is_dead_letter_topic, is_valid_name


def has_dead_letters(topic: str) -> bool:
    """Not a dead-letter topic, and none whose dead-letter topic could not be named."""
    return not is_dead_letter_topic(topic) and is_valid_name(dead_letter_topic_of(topic))


class DeadLetterPublisher:
    def __init__(self, topic: str, channel: str, settings: Settings) -> None:
        self._topic = topic
        self._channel = channel
        self._settings = settings
        self._target = dead_letter_topic_of(topic)
        self._connections: dict[str, NsqdConnection] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def publish(self, message: Message, *, reason: str = "") -> None:
        """Raises a PumplineError unless nsqd has confirmed it."""
        letter = dead_letter(
            topic=self._topic,
            channel=self._channel,
            message_id=message.id,
            attempts=message.attempts,
            timestamp_ns=message.timestamp_ns,
            body=message.body,
            reason=reason,
        )
        async with self._turns[message.node]:
            try:
                await self._send(message.node, letter)
            except ServerError as error:
                if error.code != "E_BAD_MESSAGE":
                    raise
                await self._send(message.node, message.body)

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()))

    async def _send(self, address: str, letter: bytes) -> None:
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            connection = await NsqdConnection.open(address, self._settings)
            self._connections[address] = connection
        try:
            await connection.request(commands.pub(self._target, letter))
        except BaseException:
            self._connections.pop(address).abort(None)
            raise
