"""One connection to an nsqd: commands out, messages and answers in.

| phase    | what arrives goes to                                                          |
|----------|-------------------------------------------------------------------------------|
| opening  | `handshake`, which pulls single frames: an answer may switch on TLS or        |
|          | compression for the bytes right behind it                                     |
| open     | `core.protocol.incoming`, a chunk at a time; callbacks are called once a chunk |
| closing  | nobody                                                                        |

Output is collected and written once per iteration of the loop, however many commands there are.
Knows sockets, layers and heartbeats. Must not know topics, RDY, retries or handlers: producer and
consumer know those.
"""

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Self, cast
from weakref import WeakSet

from pumpline.client.connection.address import parse_address
from pumpline.client.connection.answer_queue import AnswerQueue, OnAnswer
from pumpline.client.connection.handshake import Handshake
from pumpline.client.connection.negotiation import Negotiated
from pumpline.client.connection.stall_timers import StallTimers
from pumpline.client.errors import (
    ConnectError,
    ConnectionClosedError,
    PumplineError,
    ServerError,
    StalledError,
)
from pumpline.client.settings import Settings
from pumpline.core.protocol import commands
from pumpline.core.protocol.frames import ERROR, MAGIC_V2
from pumpline.core.protocol.incoming import Frame, FrameError, Incoming, Message
from pumpline.core.protocol.layers import EndOfStream, Layers, UpgradeError
from pumpline.unread import read_unread

WATER_MARK_BYTES = 1 << 20  # unsent output above which it is not writable
READ_BYTES = 256 * 1024  # decoded at a time
CLOSE_TIMEOUT_S = 5.0  # for nsqd to take the rest of our output

OnMessages = Callable[["NsqdConnection", list[Message]], None]
OnError = Callable[["NsqdConnection", ServerError], None]
OnClose = Callable[["NsqdConnection", Exception | None], None]
OnWritable = Callable[["NsqdConnection"], None]
"""It was not writable, and is again."""

_open: "WeakSet[NsqdConnection]" = WeakSet()


def sockets_of(loop: asyncio.AbstractEventLoop) -> list[int]:
    """The descriptors of the connections that are open on the loop."""
    return [each.fileno() for each in list(_open) if each._loop is loop and each.fileno() >= 0]


def _ignore(connection: "NsqdConnection", what: object) -> None:
    pass


class NsqdConnection(asyncio.Protocol):
    """Made by `open`. Callbacks must not raise; they may write, close and abort."""

    def __init__(
        self,
        address: str,
        settings: Settings,
        *,
        on_messages: OnMessages = _ignore,
        on_error: OnError = _ignore,
        on_close: OnClose = _ignore,
        on_writable: OnWritable | None = None,
    ) -> None:
        self.address = address
        self.settings = settings
        self.negotiated = Negotiated()
        self.is_closed = False
        self.is_writable = True
        self.reason: Exception | None = None
        """Why it is closed; None if `close` was called."""
        self._on_messages = on_messages
        self._on_error = on_error
        self._on_close = on_close
        self._on_writable = on_writable
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._layers: Layers | None = None
        self._incoming = Incoming(settings.frame_bytes_max)
        self._handshake: Handshake | None = None  # while it is being opened
        self._answers = AnswerQueue()
        self._output: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()
        self._is_opened = False
        self._closing = False
        self._stall = StallTimers(settings, self._abort_stalled)

    @classmethod
    async def open(
        cls,
        address: str,
        settings: Settings,
        *,
        on_messages: OnMessages = _ignore,
        on_error: OnError = _ignore,
        on_close: OnClose = _ignore,
        on_writable: OnWritable | None = None,
    ) -> Self:
        """Connect, identify, upgrade and authenticate; ConnectError if any of it fails."""
        connection = cls(
            address,
            settings,
            on_messages=on_messages,
            on_error=on_error,
            on_close=on_close,
            on_writable=on_writable,
        )
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await connection._open()
        except BaseException as error:
            connection.abort(None)
            if isinstance(error, ConnectError):
                raise
            if isinstance(error, TimeoutError):
                text = f"{address}: not connected within {settings.connect_timeout_s:g} s"
                raise ConnectError(text) from error
            if isinstance(error, ConnectionClosedError):
                raise ConnectError(str(error)) from error
            if isinstance(error, OSError | PumplineError | UpgradeError | EndOfStream):
                raise ConnectError(f"{address}: {_cause(error)}") from error
            if isinstance(error, UnicodeError):
                raise ConnectError(f"{address}: that is not the name of a host") from error
            raise
        return connection

    async def _open(self) -> None:
        where = parse_address(self.address)
        host = "localhost" if isinstance(where, str) else where[0]
        handshake = self._handshake = Handshake(self.address, self.settings, self._write_wire)
        if isinstance(where, str):
            await self._loop.create_unix_connection(lambda: self, where)
        else:
            await self._loop.create_connection(lambda: self, *where)
        await handshake.run(host)
        if self.is_closed:
            raise self._closed("nsqd closed the connection")
        self.negotiated = handshake.negotiated
        self._layers = handshake.layers
        self._handshake = None
        self._is_opened = True
        self._stall.watch_input()
        self._receive(handshake.take_plain())
        if wire := handshake.take_wire():
            self.data_received(wire)
        elif self._layers is not None:
            self._read_layers(self._layers)

    # -- for its users ------------------------------------------------------------------------

    def write(self, *what: bytes) -> None:
        """Send commands that nsqd does not answer; ignored if it is closed."""
        if self.is_closed or self._closing:
            return
        if not self._output:
            self._loop.call_soon(self.flush)
        self._output += what

    def ask(self, command: bytes, on_answer: OnAnswer) -> None:
        """Send a command that nsqd answers, or else with ServerError or ConnectionClosedError."""
        if self.is_closed or self._closing:
            on_answer(b"", self._closed_error(sent=False))
            return
        self._answers.add(on_answer)
        self.write(command)

    def request(self, command: bytes) -> "asyncio.Future[bytes]":
        """`ask` with a future instead of a callback."""
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def on_answer(data: bytes, error: Exception | None) -> None:
            if answer.done():
                return  # nobody waits any more
            if error is None:
                answer.set_result(data)
            else:
                answer.set_exception(error)
                answer.exception()  # mark it as seen: the caller may not wait for the answer

        self.ask(command, on_answer)
        return answer

    def flush(self) -> None:
        """Write the output now instead of at the end of this iteration of the loop."""
        output = self._output
        if not output or self._closing:
            return
        self._output = []
        self._answers.flushed()
        layers = self._layers
        if layers is None:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))
            return
        try:
            layers.write(output)
        except UpgradeError as error:
            self.abort(self._closed(str(error)))
            return
        self._send_wire(layers)

    async def drain(self) -> None:
        """Wait until it is writable."""
        await self._writable.wait()
        if self.is_closed:
            raise self._closed_error(sent=False)

    def fileno(self) -> int:
        """The socket's; -1 if it is closed."""
        raw = None if self.is_closed else self._transport.get_extra_info("socket")
        return -1 if raw is None else int(raw.fileno())

    def pause_reading(self) -> None:
        self._stall.is_reading = False
        if not self.is_closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._stall.is_reading = True
        if self.is_closed:
            return
        self._stall.was_heard = True
        self._transport.resume_reading()
        if self._layers is not None:
            self._loop.call_soon(self._read_layers, self._layers)

    async def close(self) -> None:
        """Send the output, and close; open requests fail."""
        if not self.is_closed and not self._closing:
            self.flush()
            self._closing = True
            self.is_writable = False
            if self._layers is not None and self._layers.tls is not None:
                self._layers.tls.say_goodbye()
                self._send_wire(self._layers)
            self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()
        except TimeoutError:
            self.abort(None)
            await self._ended.wait()

    def abort(self, reason: Exception | None) -> None:
        """Close at once, without sending the output."""
        if self.is_closed:
            return
        if not self._closing:
            self.reason = reason
        self._closing = True
        self.is_writable = False
        self._output.clear()
        if hasattr(self, "_transport"):
            self._transport.abort()

    # -- output -------------------------------------------------------------------------------

    def _send_wire(self, layers: Layers) -> None:
        if data := layers.take():
            self._transport.write(data)

    def _write_wire(self, data: bytes) -> None:
        if not self.is_closed:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._writable.clear()
        self._stall.watch_output(self._transport.get_write_buffer_size)

    def resume_writing(self) -> None:
        self._stall.output_flows()
        if self._closing:
            return
        self.is_writable = True
        self._writable.set()
        if self._on_writable is not None:
            self._on_writable(self)

    # -- input --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WATER_MARK_BYTES)
        self._transport.write(MAGIC_V2)
        _open.add(self)

    def data_received(self, data: bytes) -> None:
        self._stall.was_heard = True
        if self._handshake is not None:
            if not self._handshake.receive(data):
                self.abort(self._closed("nsqd talks out of turn"))
        elif self._closing:
            pass
        elif self._layers is None:
            self._receive(data)
        else:
            self._layers.receive(data)
            self._read_layers(self._layers)

    def _read_layers(self, layers: Layers) -> None:
        try:
            while (
                self._stall.is_reading and not self._closing and (piece := layers.read(READ_BYTES))
            ):
                self._receive(piece)
        except UpgradeError as error:
            self.abort(self._closed(str(error)))
        except EndOfStream:
            self.abort(self._closed("nsqd ended the stream"))
        if not self._closing:
            self._send_wire(layers)  # reading can make TLS send something

    def _receive(self, data: bytes) -> None:
        try:
            messages, frames = self._incoming.receive(data)
        except FrameError as error:
            self.abort(self._closed(f"nsqd sent {error}"))
            return
        if messages:
            self._on_messages(self, messages)
        for frame in frames:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        kind, data = frame
        if kind != ERROR:
            if data == b"_heartbeat_":
                self.write(commands.NOP)
            else:
                self._answers.answer(data)
            return
        error = ServerError.parse(data)
        if error.fatal:
            self.reason = self.reason or error  # nsqd will close the connection
            if self._answers.refuse(error):
                return
        self._on_error(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        may_be_answered = exc is not None and not self._closing and self._answers.are_expected
        if may_be_answered and (unread := read_unread(self._transport)):
            self.data_received(bytes(unread))
        was_closing, self._closing, self.is_closed = self._closing, True, True
        self.is_writable = False
        _open.discard(self)
        if self.reason is None and not was_closing:
            self.reason = self._closed(_cause(exc) if exc else "nsqd closed the connection")
        self._stall.cancel()
        self._output.clear()
        self._writable.set()
        if self._handshake is not None:
            self._handshake.end(self.reason)
        self._answers.fail(lambda sent: self._closed_error(sent=sent))
        if self._is_opened:
            self._on_close(self, self.reason)
        self._ended.set()

    def _abort_stalled(self, text: str) -> None:
        self.abort(StalledError(f"{self.address}: {text}"))

    def _closed(self, text: str) -> ConnectionClosedError:
        return ConnectionClosedError(f"{self.address}: {text}")

    def _closed_error(self, *, sent: bool) -> ConnectionClosedError:
        """The error of a request that is not answered."""
        reason = self.reason
        if reason is None:
            return ConnectionClosedError(f"{self.address}: the connection is closed", sent=sent)
        kind = StalledError if isinstance(reason, StalledError) else ConnectionClosedError
        text = (
            str(reason)
            if isinstance(reason, ConnectionClosedError)
            else f"{self.address}: {reason}"
        )
        error = kind(text, sent=sent)
        error.__cause__ = reason
        return error


def _cause(error: BaseException) -> str:
    text = str(error)
    if "Connect call failed" in text:  # asyncio's words, for one address of the host or several
        numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", text))
        return "; ".join(os.strerror(int(number)).lower() for number in numbers)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    with suppress(IndexError):
        return str(error.args[0])
    return type(error).__name__
