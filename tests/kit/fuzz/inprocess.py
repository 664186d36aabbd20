"""nsqd inside the test, and connections to it without a socket: thousands of streams a minute.

A `Wire` is the transport of a real Connection: bytes go in exactly as a test cuts them, which no
socket promises, and an exception anywhere in the broker fails the test that caused it.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pumpline.core.text import flags
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import FLAGS, Options
from pumpline.nsqd.ports import Ports
from pumpline.nsqd.protocol.connection import Connection
from pumpline.nsqd.server import Server

T = TypeVar("T")

TURNS_MAX = 1000  # of the event loop, for something to happen that needs no disk and no clock


class InProcess:
    """A started nsqd on an event loop of its own, which runs while `run` does.

    Whatever the loop has to report as unhandled is raised by `run`.
    """

    def __init__(
        self,
        data_path: Path,
        argv: Sequence[str] = (),
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        given = [
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",
            f"--data-path={data_path}",
        ]
        self._options = Options.from_sources(flags.parse(FLAGS, [*given, *argv]).values, {})
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self._unhandled: list[BaseException] = []
        self._server: Server
        self._log = logging.getLogger("pumpline")
        self._log_level = self._log.level
        self._thresholds = gc.get_threshold()

    @property
    def broker(self) -> Broker:
        assert self._server.broker is not None
        return self._server.broker

    @property
    def ports(self) -> Ports:
        return self._server.ports

    def __enter__(self) -> Self:
        self._log.setLevel(logging.CRITICAL)  # pytest keeps all lines of a test in memory
        self._runner.get_loop().set_exception_handler(self._note)
        try:
            self.run(self._start())
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._server.close())
        finally:
            self._restore()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        result = self._runner.run(work)
        if self._unhandled:
            raise self._unhandled[0]
        return result

    async def _start(self) -> None:
        self._server = Server(self._options, Claim(self._options))
        try:
            await self._server.start()
        except BaseException:
            await self._server.close()
            raise

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(context.get("exception") or RuntimeError(context.get("message")))

    def _restore(self) -> None:
        self._runner.close()
        self._log.setLevel(self._log_level)
        gc.set_threshold(*self._thresholds)


class Wire(asyncio.Transport):
    """One connection, from the side of the client."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.received = bytearray()
        self.closed = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(broker.connections)
        self._connection.connection_made(self)

    async def send(self, pieces: Iterable[bytes]) -> None:
        """One read each, with a turn of the event loop after it."""
        for piece in pieces:
            at = 0
            while at < len(piece) and not self._closing:
                buffer = self._connection.get_buffer(-1)
                part = piece[at : at + len(buffer)]
                buffer[: len(part)] = part
                self._connection.buffer_updated(len(part))
                at += len(part)
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Close the sending side, and wait until the broker has closed the other."""
        if not self._closing and not self._connection.eof_received():
            self._loop.call_soon(self.close)  # what is to be written is, by then
        for _ in range(TURNS_MAX):
            if self.closed:
                return
            await asyncio.sleep(0)
        raise AssertionError("the connection was not closed")

    # -- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing:
            self.received += data

    def writelines(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.write(part)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lost)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def _lost(self) -> None:
        self.closed = True
        self._connection.connection_lost(None)
