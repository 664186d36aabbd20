"""Asks all nodes at the same time, each in a thread of its own.

A node that drops packets answers after minutes or never. A caller with patience waits so long for
all nodes together; the question to a node that is late goes on, and its answer is taken by the next
call for the same work. Until then the node counts as unreachable at once, so it delays only the
call that found it late. Knows threads; must not know what is asked.

The threads are daemons: nobody waits for them when the process ends.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from pyspark_nsq.errors import Unreachable

T = TypeVar("T")


class NodeWorkers:
    def __init__(self) -> None:
        self._workers: dict[str, NodeWorker] = {}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def at_once(
        self,
        addresses: Iterable[str],
        work: Callable[[str], T],
        *,
        kind: str,
        patience_s: float | None = None,
    ) -> dict[str, T | Unreachable]:
        """Do the work for all addresses; None waits until each has an answer or has failed. `kind`
        names the work: late answers are kept by it."""
        until_s = None if patience_s is None else time.monotonic() + patience_s
        asked: dict[str, Future[Any] | Unreachable] = {}
        for address in addresses:
            if address not in self._workers:
                self._workers[address] = NodeWorker(address)
            asked[address] = self._workers[address].ask(work, kind, is_patient=until_s is None)
        return {
            address: self._workers[address].outcome(future, kind, until_s)
            for address, future in asked.items()
        }


class NodeWorker:
    """The thread of one node; it begins with the first question."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._queue: SimpleQueue[tuple[Callable[[str], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._late: tuple[str, Future[Any]] | None = None  # with its kind

    def close(self) -> None:
        self._queue.put(None)

    def ask(
        self, work: Callable[[str], T], kind: str, *, is_patient: bool
    ) -> Future[T] | Unreachable:
        if self._late is not None:
            late_kind, late = self._late
            if not late.done() and not is_patient:
                return self._is_late()
            self._late = None
            if late.done() and late_kind == kind and late.exception() is None:
                return late
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"node {self._address}", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def outcome(
        self, future: Future[T] | Unreachable, kind: str, until_s: float | None
    ) -> T | Unreachable:
        if isinstance(future, Unreachable):
            return future
        try:
            return future.result(None if until_s is None else max(until_s - time.monotonic(), 0))
        except Unreachable as error:
            return error
        except TimeoutError:
            self._late = (kind, future)
            return self._is_late()

    def _is_late(self) -> Unreachable:
        return Unreachable(f"{self._address} does not answer in time")

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            try:
                future.set_result(work(self._address))
            except BaseException as error:  # the root of a thread: the one who waits gets it
                future.set_exception(error)
