"""An upgraded connection: TLS, then snappy or deflate, between the socket and the commands.

`Upgraded` moves bytes between the transport and the layers (`core.protocol.layers`): a handshake
within its time limit first, then what the layers hold, a bufferful at a time, so that a client
whose bytes unpack to a lot does not keep the others waiting. Knows no commands.
"""

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from pumpline.core.protocol import frames
from pumpline.core.protocol.layers import (
    Compression,
    Deflate,
    EndOfStream,
    Layers,
    Snappy,
    Tls,
    UpgradeError,
)
from pumpline.nsqd.protocol.identify import ClientOptions
from pumpline.nsqd.queue.consumer import Buffer

if TYPE_CHECKING:  # a connection makes its own
    from pumpline.nsqd.protocol.connection import Connection

HANDSHAKE_S = 5.0

_LOG = logging.getLogger(__name__)


def new_layers(client: ClientOptions, context: ssl.SSLContext | None, peer: str) -> Layers:
    """The layers that a client was granted by IDENTIFY."""
    tls = None
    compression: Compression | None = None
    if client.tls_v1 and context is not None:
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to TLS", peer)
        tls = Tls(context)
    if client.snappy:
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to snappy", peer)
        compression = Snappy()
    elif client.deflate:
        level = client.deflate_level
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", peer, level)
        compression = Deflate(level)
    return Layers(tls=tls, compression=compression)


class Upgraded:
    def __init__(
        self,
        client: "Connection",
        layers: Layers,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        turn_bytes: int,
    ) -> None:
        """`turn_bytes`: how much is carried out before others have their turn."""
        self.layers = layers
        self._client = client
        self._transport = transport
        self._loop = loop
        self._turn_bytes = turn_bytes
        self._time_limit: asyncio.TimerHandle | None = None  # of the handshake

    def begin(self, held: bytearray) -> None:
        """`held` came after the IDENTIFY; the client knows that it is granted."""
        if held:
            self.layers.receive(held)
        if self.layers.open:
            self._opened()
        else:
            self._time_limit = self._loop.call_later(HANDSHAKE_S, self.abandon, "i/o timeout")
        self.resume_input()

    def receive(self, data: memoryview) -> None:
        self.layers.receive(data)
        self._advance()

    def resume_input(self) -> None:
        """Parse the input that was held."""
        self._advance()

    def write(self, replies: list[bytes], messages: list[Buffer]) -> None:
        try:
            self.layers.write_frames(replies, messages)
        except UpgradeError as error:
            _LOG.error("[%s] - %s", self._client.peer, error)
            self._client.close()
        self._send()

    def say_goodbye(self) -> None:
        """Tell the client that nothing follows."""
        if self.layers.tls is not None:
            self.layers.tls.say_goodbye()
            self._send()

    def abandon(self, cause: str) -> None:
        """The handshake failed."""
        self._stop_time_limit()
        self._send()
        self._client.fail_upgrade(cause)

    def stop(self) -> None:
        """The connection is gone."""
        self._stop_time_limit()

    def _advance(self) -> None:
        """Carry out what the layers hold, up to a bufferful; the rest after the others' turn."""
        client, layers = self._client, self.layers
        if not layers.open and not self._shake_hands():
            return
        room = self._turn_bytes
        try:
            while room > 0 and not client.holds_input and (piece := layers.read(room)):
                room -= len(piece)
                client.take_commands(piece)
                if layers.has_more:
                    break
        except EndOfStream:
            client.end_input()
        except UpgradeError as error:
            _LOG.error("client(%s) - failed to read command - %s", client.peer, error)
            client.end()
        self._send()
        if (room <= 0 or layers.has_more) and not client.holds_input:
            client.wait_turn()
        client.set_reading()

    def _shake_hands(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self.layers.shake_hands()
        except UpgradeError as error:
            self.abandon(str(error))
            return False
        self._send()
        if self.layers.open:
            self._opened()
        else:
            self._client.set_reading()
        return self.layers.open

    def _opened(self) -> None:
        self._stop_time_limit()
        self.layers.greet(frames.OK)
        self._send()
        self._client.upgraded()

    def _stop_time_limit(self) -> None:
        if self._time_limit is not None:
            self._time_limit.cancel()
            self._time_limit = None

    def _send(self) -> None:
        data = self.layers.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)
