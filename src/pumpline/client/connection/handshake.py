"""The opening of a connection: IDENTIFY, TLS, compression and AUTH, one answer at a time.

The connection feeds it what arrives (`receive`); it pulls out one frame after the other. It must
not decode the bytes behind an answer earlier: the answer may switch on TLS or compression for them.
When it is done, the connection takes over what is left. Knows no socket: it is given a function to
write with.
"""

import asyncio
from collections.abc import Callable

from pumpline.client.connection.negotiation import (
    Negotiated,
    auth_secret,
    identify_body,
    tls_context,
)
from pumpline.client.errors import (
    AuthRequiredError,
    ConnectError,
    ConnectionClosedError,
    MissingExtraError,
    ServerError,
)
from pumpline.client.settings import Settings
from pumpline.core.protocol import commands
from pumpline.core.protocol.errors import E_BAD_PROTOCOL
from pumpline.core.protocol.frames import ERROR, RESPONSE
from pumpline.core.protocol.layers import Compression, Deflate, LayerMissing, Layers, Snappy, Tls

TLS_REQUIRED = "(TLS required)"  # in nsqd's refusals
HANDSHAKE_BYTES_MAX = 1 << 20  # of unread input, and of one answer


class Handshake:
    def __init__(self, address: str, settings: Settings, write: Callable[[bytes], None]) -> None:
        self.negotiated = Negotiated()
        self.layers: Layers | None = None
        self._address = address
        self._settings = settings
        self._write = write
        self._wire = bytearray()  # as received
        self._plain = bytearray()  # decrypted and decompressed
        self._arrived = asyncio.Event()
        self._end: Exception | None = None

    def receive(self, data: bytes) -> bool:
        """Whether there is room for more."""
        self._wire += data
        self._arrived.set()
        return len(self._wire) <= HANDSHAKE_BYTES_MAX

    def end(self, reason: Exception | None) -> None:
        """Nothing more will come."""
        self._end = reason or ConnectionClosedError(f"{self._address}: closed while it was opened")
        self._arrived.set()

    def take_plain(self) -> bytes:
        return bytes(self._plain)

    def take_wire(self) -> bytes:
        return bytes(self._wire)

    async def run(self, host: str) -> None:
        settings = self._settings
        compression = new_compression(settings)
        self._send(commands.identify(identify_body(settings)))
        try:
            granted = self.negotiated = Negotiated.parse(await self._answer())
        except ValueError as error:
            raise self._odd(str(error)) from None
        context = tls_context(settings)
        if context is not None:
            if not granted.tls_v1:
                # The user asked for TLS: do not go on without it.
                raise ConnectError(f"{self._address}: nsqd offers no TLS")
            await self._start_tls(Tls(context, server_name=settings.tls_server_name or host))
        if compression is not None and (granted.snappy or granted.deflate):
            self.layers = self.layers or Layers(tls=None, compression=None)
            self.layers.compression = compression
            await self._expect_ok()
        if granted.auth_required:
            await self._authenticate(auth_secret(settings))

    async def _authenticate(self, secret: bytes) -> None:
        if not secret:
            if self.layers is None or self.layers.tls is None:
                await self._refuse_without_tls()
            raise AuthRequiredError(f"{self._address}: nsqd requires an auth_secret")
        self._send(commands.auth(secret))
        await self._answer()

    async def _refuse_without_tls(self) -> None:
        """Raise if nsqd requires TLS, too: a user should not learn that only after AUTH works. The
        answer to IDENTIFY does not tell. CLS does: nsqd refuses it in any case here, and says so if
        TLS is the reason."""
        self._send(commands.CLS)
        try:
            await self._answer()
        except ServerError as error:
            if TLS_REQUIRED in error.text:
                text = (
                    f"{self._address}: nsqd requires TLS (tls in the settings) and an auth_secret"
                )
                raise AuthRequiredError(text) from error

    async def _start_tls(self, tls: Tls) -> None:
        layers = self.layers = Layers(tls=tls, compression=None)
        try:
            tls.shake_hands()
            while not tls.established:
                self._write(layers.take())
                await self._more()
                self._feed(layers)
                tls.shake_hands()
        finally:
            self._write(layers.take())  # the alert, if the handshake has failed
        await self._expect_ok()

    async def _expect_ok(self) -> None:
        answer = await self._answer()
        if answer != b"OK":
            raise self._odd(f"expected OK, got {answer[:64]!r}")

    def _send(self, command: bytes) -> None:
        if self.layers is not None:
            self.layers.write([command])
            command = self.layers.take()
        self._write(command)

    async def _answer(self) -> bytes:
        """The data of the next response."""
        while True:
            head = await self._read(4)
            if head == b"HTTP":
                raise ConnectError(f"{self._address}: an HTTP port; nsqd's TCP port is needed")
            size = int.from_bytes(head)
            if not 4 <= size <= HANDSHAKE_BYTES_MAX:
                raise self._odd(f"a frame of {size} bytes")
            frame = await self._read(size)
            if frame == E_BAD_PROTOCOL.encode():  # without a type: nsqlookupd's frames have none
                text = "an nsqlookupd's TCP port; an nsqd's is needed"
                raise ConnectError(f"{self._address}: {text}")
            kind, data = int.from_bytes(frame[:4]), frame[4:]
            if kind == ERROR:
                raise ServerError.parse(data)
            if kind != RESPONSE:
                raise self._odd(f"a frame of type {kind}")
            if data != b"_heartbeat_":
                return data
            self._send(commands.NOP)

    async def _read(self, count: int) -> bytes:
        """So many bytes. It decodes no more than that: what follows may be for a layer that is not
        switched on yet."""
        plain = self._plain
        while len(plain) < count:
            missing = count - len(plain)
            if self.layers is None:
                piece = bytes(self._wire[:missing])
                del self._wire[:missing]
            else:
                self._feed(self.layers)
                piece = self.layers.read(missing)
                self._write(self.layers.take())
            plain += piece
            if not piece:
                await self._more()
        data = bytes(plain[:count])
        del plain[:count]
        return data

    def _feed(self, layers: Layers) -> None:
        if self._wire:
            layers.receive(bytes(self._wire))
            self._wire.clear()

    async def _more(self) -> None:
        if self._end is not None:
            raise self._end
        self._arrived.clear()
        await self._arrived.wait()

    def _odd(self, what: str) -> ConnectError:
        return ConnectError(f"{self._address}: not the answer of an nsqd: {what}")


def new_compression(settings: Settings) -> Compression | None:
    """The compression they ask for; MissingExtraError if its library is not installed."""
    try:
        if settings.snappy:
            return Snappy()
        return Deflate(settings.deflate_level) if settings.deflate else None
    except LayerMissing as error:
        raise MissingExtraError(str(error)) from None
