"""A daemon on its event loop: from the start of its server through signals to the end.

Knows nothing of what a daemon serves, nor of flags.
"""

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pumpline.tools.daemon import FATAL, DaemonServer, log
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.standard_streams import StdoutError
from pumpline.web.process_memory import HeapTrim
from pumpline.web.sockets import StartupError

_GC_THRESHOLDS = (50_000, 20, 100)  # a batch is a few objects, so frequent collections find nothing


@runtime_checkable
class Drains(Protocol):
    """A server that lets its clients finish before it closes."""

    @property
    def drain_wanted(self) -> asyncio.Event:
        """Set when something other than a signal asks it to stop; exists after `start`."""

    async def drain(self, hurry: asyncio.Event) -> None:
        """Return when clients have finished, or when `hurry` is set."""


def run_server(name: str, new_server: Callable[[], DaemonServer]) -> int:
    """Run a server until SIGINT or SIGTERM; returns the exit code."""
    loop_factory, loop_name = event_loop()
    log.info("event loop: %s", loop_name)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_until_stopped(new_server))
    except StartupError as error:
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    except StdoutError:  # nobody can read where it listens
        raise
    except Exception:
        log.log(FATAL, "%s stopped by an unexpected error", name, exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


def event_loop() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """uvloop where it is installed: it takes a quarter of asyncio's CPU with many connections."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, "asyncio (uvloop is not installed)"
    return uvloop.new_event_loop, "uvloop"


async def _until_stopped(new_server: Callable[[], DaemonServer]) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    gc.set_threshold(*_GC_THRESHOLDS)  # before the imports: a tenth of their time went to it
    server, heap = new_server(), HeapTrim()

    def on_stop(number: signal.Signals) -> None:
        if stop.is_set():
            log.info("%s received again, stopping at once", number.name)
            hurry.set()
        else:
            log.info("%s received, stopping", number.name)
            stop.set()

    def on_hangup() -> None:
        log.info("SIGHUP received%s", "" if server.reload() else ", ignored")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_stop, number)
    # A SIGHUP ends Go's nsqd without writing its memory to disk; log rotation scripts send it.
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await _start(server)
        heap.start(loop)
        if isinstance(server, Drains):
            await _any_of(stop, server.drain_wanted)
            await server.drain(hurry)
        else:
            await stop.wait()
    finally:
        heap.close()
        await server.close()


async def _start(server: DaemonServer) -> None:
    """Start it with the garbage collector off. What is made stays: with 10,000 topics, to look
    through it once would take 1 s, in which nothing else happens."""
    gc.collect()
    gc.disable()
    try:
        await server.start()
        gc.freeze()
    finally:
        gc.enable()


async def _any_of(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
