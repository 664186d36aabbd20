"""nsqd as a process: opens the data directory, starts the listeners, and ends in order."""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from pumpline.broker.address import listen_address
from pumpline.broker.broker import Broker
from pumpline.broker.checkpoints import Checkpoints
from pumpline.broker.connection import Connection
from pumpline.broker.health import Health
from pumpline.broker.options import Options
from pumpline.broker.retention import Retention
from pumpline.broker.services import Services
from pumpline.broker.syncs import Syncs
from pumpline.broker.tick import Tick
from pumpline.log.directory import Directory, DirectoryError
from pumpline.log.files import FilePool

THREADS = 4
BACKLOG = 1024
_GC_THRESHOLDS = (50_000, 20, 100)  # a batch is a few objects: collecting often finds nothing

_LOG = logging.getLogger(__name__)


class StartupError(Exception):
    """nsqd cannot begin; the text says why."""


async def serve(options: Options, stop: asyncio.Event) -> None:
    """Run nsqd until `stop` is set."""
    server = Server(options)
    try:
        await server.start()
        await stop.wait()
    finally:
        await server.close()
    _LOG.info("NSQ: bye")


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="nsqd-disk")
        self.directory = Directory(options.data_path or os.getcwd())
        self.broker: Broker
        self.tcp_port = 0
        self._listeners: list[asyncio.AbstractServer] = []

    async def start(self) -> None:
        try:
            self.directory.lock()
        except DirectoryError as error:
            raise StartupError(str(error)) from error
        self.broker = Broker(self._services(), self.loop)
        try:
            self.broker.load()
        except DirectoryError as error:
            raise StartupError(str(error)) from error
        await self.broker.metadata.persist()
        Retention(self.broker.services, self.broker.topics.values).start()
        await self._listen_tcp()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if hasattr(self, "broker"):
            for connection in list(self.broker.connections):
                connection.close()
            await asyncio.sleep(0)
            await self.broker.close()
        self.threads.shutdown()
        self.directory.unlock()

    def _services(self) -> Services:
        loop = self.loop
        options = self.options
        tick = Tick(loop.call_soon)
        return Services(
            options=options,
            tick=tick,
            directory=self.directory,
            files=FilePool(),
            health=Health(self.directory.path, offload=self._offload, later=loop.call_later),
            checkpoints=Checkpoints(
                offload=self._offload,
                later=loop.call_later,
                wall_ahead_ns=lambda: tick.wall_ahead_ns,
            ),
            syncs=Syncs(
                every=options.sync_every,
                timeout_ns=options.sync_timeout_ns,
                offload=self._offload,
                later=loop.call_later,
            ),
            offload=self._offload,
            later=loop.call_later,
            registration_changed=lambda topic, channel: None,
            topic_gone=lambda topic: None,
            tail_bytes_max=0,
        )

    def _offload(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job` in a thread, then `done` with its result or exception, here."""

        def finished(future: "Future[Any]") -> None:
            result = future.exception() or future.result()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(done, result)

        self.threads.submit(job).add_done_callback(finished)

    async def _listen_tcp(self) -> None:
        address = self.options.tcp_address
        where = listen_address(address)
        make = lambda: Connection(self.broker)  # noqa: E731
        try:
            if isinstance(where, str):
                with suppress(FileNotFoundError):
                    os.unlink(where)
                listener = await self.loop.create_unix_server(make, where, backlog=BACKLOG)
            else:
                host, port = where
                listener = await self.loop.create_server(
                    make, host or None, port, backlog=BACKLOG, reuse_address=True
                )
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartupError(f"listen ({address}) failed - {reason}") from error
        self._listeners.append(listener)
        shown = _bound(listener)
        _LOG.info("TCP: listening on %s", shown)


def _bound(listener: Any) -> str:
    name = listener.sockets[0].getsockname()
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return str(name)
