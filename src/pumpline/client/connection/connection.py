"""One connection to an nsqd: commands out, messages and answers in.

Knows sockets, IDENTIFY and its upgrades, AUTH, heartbeats, and that answers come in the order of
requests. Knows nothing of topics, credit, retries or handlers: those are the producer's and the
consumer's.

While it is being opened, frames are pulled one by one, as nothing after an answer may be looked
at before the layer it announces is on. From then on chunks are pushed through `core.incoming`,
and the callbacks are called once a chunk. Output is collected and written once an iteration of
the loop, however many commands there are.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self, cast
from weakref import WeakSet

from pumpline.client.connection.address import parse_address
from pumpline.client.connection.handshake import Greeting
from pumpline.client.connection.settings import Negotiated, Settings
from pumpline.client.errors import (
    ConnectError,
    ConnectionClosed,
    PumplineError,
    ServerError,
    Stalled,
)
from pumpline.core.protocol import commands
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
)
from pumpline.core.protocol.frames import ERROR, MAGIC_V2
from pumpline.core.protocol.incoming import Frame, FrameError, Incoming, Message
from pumpline.core.protocol.layers import EndOfStream, Layers, UpgradeError

WATER_MARK_BYTES = 1 << 20  # unsent output at which it is no longer writable
READ_BYTES = 256 * 1024  # taken out of the layers at once
CLOSE_TIMEOUT_S = 5.0  # for the server to take what is left

# What these are said of is not read to its end, nor is anything behind it.
_MALFORMED = frozenset({E_INVALID, E_BAD_TOPIC, E_BAD_CHANNEL, E_BAD_MESSAGE, E_BAD_BODY})

OnMessages = Callable[["Connection", list[Message]], None]
OnError = Callable[["Connection", ServerError], None]
OnClose = Callable[["Connection", Exception | None], None]
OnWritable = Callable[["Connection"], None]
"""It was not, and is again."""
OnAnswer = Callable[[bytes, Exception | None], None]
"""The data of the answer; or why there is none."""


_open: "WeakSet[Connection]" = WeakSet()


def sockets_of(loop: asyncio.AbstractEventLoop) -> list[int]:
    """The descriptors of the connections that are open on the loop."""
    return [each.fileno() for each in list(_open) if each._loop is loop and each.fileno() >= 0]


def _ignore(connection: "Connection", what: object) -> None:
    pass


class Connection(asyncio.Protocol):
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
        self._greeting: Greeting | None = None  # while it is being opened
        self._expected: deque[OnAnswer] = deque()
        self._output: list[bytes] = []
        self._unsent_requests = 0  # of the expected, those whose command is still in the output
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()
        self._is_opened = False
        self._is_cut_off = False  # nsqd does not get to what is expected still
        self._closing = False
        self._reading = True
        self._heard = True
        self._watch: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None

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
            if isinstance(error, ConnectionClosed):
                raise ConnectError(str(error)) from error
            if isinstance(error, OSError | PumplineError | UpgradeError | EndOfStream):
                raise ConnectError(f"{address}: {_cause(error)}") from error
            if isinstance(error, UnicodeError):
                raise ConnectError(f"{address}: that is no name of a host") from error
            raise
        return connection

    async def _open(self) -> None:
        where = parse_address(self.address)
        host = "localhost" if isinstance(where, str) else where[0]
        greeting = self._greeting = Greeting(self.address, self.settings, self._write_wire)
        if isinstance(where, str):
            await self._loop.create_unix_connection(lambda: self, where)
        else:
            await self._loop.create_connection(lambda: self, *where)
        await greeting.run(host)
        if self.is_closed:
            raise self._closed("nsqd closed the connection")
        self.negotiated = greeting.negotiated
        self._layers = greeting.layers
        self._greeting = None
        self._is_opened = True
        self._start_watch()
        self._receive(greeting.take_plain())
        if wire := greeting.take_wire():
            self.data_received(wire)
        elif self._layers is not None:
            self._read_layers(self._layers)

    # -- what the owner does ------------------------------------------------------------------

    def write(self, *what: bytes) -> None:
        """Send commands that are not answered; nothing happens if it is closed."""
        if self.is_closed or self._closing:
            return
        if not self._output:
            self._loop.call_soon(self.flush)
        self._output += what

    def ask(self, command: bytes, on_answer: OnAnswer) -> None:
        """Send a command that is answered: ServerError, ConnectionClosed if it is not."""
        if self.is_closed or self._closing:
            on_answer(b"", self._closed_error(sent=False))
            return
        self._expected.append(on_answer)
        self._unsent_requests += 1
        self.write(command)

    def request(self, command: bytes) -> "asyncio.Future[bytes]":
        """The same, for who waits for the answer."""
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def on_answer(data: bytes, error: Exception | None) -> None:
            if answer.done():
                return  # nobody waits any more
            if error is None:
                answer.set_result(data)
            else:
                answer.set_exception(error)
                answer.exception()  # who does not look at it is not told of it at the end

        self.ask(command, on_answer)
        return answer

    def flush(self) -> None:
        """Write now what would be written at the end of this iteration of the loop."""
        output = self._output
        if not output or self._closing:
            return
        self._output = []
        self._unsent_requests = 0
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
        self._reading = False
        if not self.is_closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self.is_closed:
            return
        self._heard = True
        self._transport.resume_reading()
        if self._layers is not None:
            self._loop.call_soon(self._read_layers, self._layers)

    async def close(self) -> None:
        """Send what is written, and close; open requests fail."""
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
        """Drop it at once."""
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
        self._watch_output(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if self._closing:
            return
        self.is_writable = True
        self._writable.set()
        if self._on_writable is not None:
            self._on_writable(self)

    def _watch_output(self, size_before: int) -> None:
        """Drop a server that took nothing since; one that is slow may go on."""

        def look() -> None:
            size = self._transport.get_write_buffer_size()
            if size < size_before:
                self._watch_output(size)
            else:
                timeout_s = self.settings.write_timeout_s
                self.abort(Stalled(f"{self.address}: nsqd took nothing for {timeout_s:g} s"))

        self._slow = self._loop.call_later(self.settings.write_timeout_s, look)

    # -- input --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WATER_MARK_BYTES)
        self._transport.write(MAGIC_V2)
        _open.add(self)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._greeting is not None:
            if not self._greeting.receive(data):
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
            while self._reading and not self._closing and (piece := layers.read(READ_BYTES)):
                self._receive(piece)
        except UpgradeError as error:
            self.abort(self._closed(str(error)))
        except EndOfStream:
            self.abort(self._closed("nsqd ended the stream"))
        if not self._closing:
            self._send_wire(layers)  # reading may make TLS say something

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
            elif self._expected:
                self._expected.popleft()(data, None)
            return
        error = ServerError.parse(data)
        if error.fatal:
            self.reason = self.reason or error  # nsqd will close the connection
            if self._expected:
                self._is_cut_off = error.code in _MALFORMED
                self._expected.popleft()(b"", error)
                return
        self._on_error(self, error)

    def connection_lost(self, exc: Exception | None) -> None:
        was_closing, self._closing, self.is_closed = self._closing, True, True
        self.is_writable = False
        _open.discard(self)
        if self.reason is None and not was_closing:
            self.reason = self._closed(_cause(exc) if exc else "nsqd closed the connection")
        for handle in (self._watch, self._slow):
            if handle is not None:
                handle.cancel()
        self._output.clear()
        self._writable.set()
        if self._greeting is not None:
            self._greeting.end(self.reason)
        sent = 0 if self._is_cut_off else len(self._expected) - self._unsent_requests
        expected, self._expected = self._expected, deque()
        for position, on_answer in enumerate(expected):
            on_answer(b"", self._closed_error(sent=position < sent))
        if self._is_opened:
            self._on_close(self, self.reason)
        self._ended.set()

    # -- what else ----------------------------------------------------------------------------

    def _start_watch(self) -> None:
        if self.settings.heartbeat_interval_s < 0:
            return  # a server may well have nothing to say

        def look(silent: int) -> None:
            silent = 0 if self._heard or not self._reading else silent + 1
            self._heard = False
            if silent == 2:
                timeout_s = self.settings.read_timeout_s
                self.abort(Stalled(f"{self.address}: nsqd said nothing for {timeout_s:g} s"))
            else:
                self._watch = self._loop.call_later(every_s, look, silent)

        every_s = self.settings.read_timeout_s / 2
        self._watch = self._loop.call_later(every_s, look, 0)

    def _closed(self, text: str) -> ConnectionClosed:
        return ConnectionClosed(f"{self.address}: {text}")

    def _closed_error(self, *, sent: bool) -> ConnectionClosed:
        """What a request fails with."""
        reason = self.reason
        if reason is None:
            return ConnectionClosed(f"{self.address}: the connection is closed", sent=sent)
        kind = Stalled if isinstance(reason, Stalled) else ConnectionClosed
        text = str(reason) if isinstance(reason, ConnectionClosed) else f"{self.address}: {reason}"
        error = kind(text, sent=sent)
        error.__cause__ = reason
        return error


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    with suppress(IndexError):
        return str(error.args[0])
    return type(error).__name__
