"""Shows the progress of a running pipeline, and stops it cleanly on SIGINT or SIGTERM.

The first signal lets the running batch finish; a second one does not wait. In both cases nothing is
lost or done twice: the checkpoint says where to go on.
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import Any, Self

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pyspark_nsq.errors import NsqError
from pyspark_nsq.progress import away, lag, least_lag

POLL_S = 0.2
LINE_EVERY_S = 5.0  # between two lines, if the output is not a terminal
STOP_S_MAX = 60.0  # for the batch that is running
_MS_PER_S = 1000
_TRACE = "Traceback (most recent call last):"
_FULL_DISK = re.compile("No space left on device|Disk quota exceeded|Not enough space")

Note = Callable[[], str]


class Stop:
    """Set by SIGINT and SIGTERM while it is in use.

    If the main thread is waiting for Spark, it cannot look at `at_once`; with `interrupts` the
    second signal raises KeyboardInterrupt. After that the program must not call Spark again: the
    reply to the interrupted call is still to come.
    """

    def __init__(self, *, interrupts: bool = False) -> None:
        self._interrupts = interrupts
        self.asked = threading.Event()
        self.at_once = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            self.at_once.set()
            if self._interrupts:
                raise KeyboardInterrupt
        self.asked.set()


class Watch:
    """Shows the progress of one query, and checks others beside it. `note` adds text that only the
    pipeline knows, as in `3 quarantined`; `without` are the nodes that may be missing."""

    def __init__(
        self,
        name: str,
        console: Console,
        *,
        note: Note = lambda: "",
        without: str | None = None,
    ) -> None:
        self.name = name
        self.rows = 0
        self.batches = 0
        self._console = console
        self._note = note
        self._done = f"done; not required: {without}" if without else "done"
        self._seen = -1
        self._newest: tuple[int, str] | None = None
        self._last: Mapping[str, Any] = {}
        self._printed_s = 0.0

    def follow(
        self, query: StreamingQuery, stop: Stop, *, beside: Sequence[StreamingQuery] = ()
    ) -> None:
        """Return when all have ended or are stopped; raise NsqError as soon as one fails."""
        queries = (query, *beside)
        live = Live(console=self._console, refresh_per_second=4, transient=True)
        try:
            with live if self._console.is_terminal else nullcontext():
                while any(one.isActive for one in queries) and not stop.asked.is_set():
                    self._look(query)
                    self._show(live)
                    _raise_failure(queries)
                    stop.asked.wait(POLL_S)
                if stop.asked.is_set():
                    self._finish_batch(query, stop)
                    # Failures from before the stop; an interrupted batch is none.
                    _raise_failure(queries)
        finally:
            for one in queries:
                one.stop()
        self._look(query)
        if not stop.asked.is_set():
            _raise_failure(queries)
        how = "stopped; the same command goes on from here" if stop.asked.is_set() else self._done
        self._console.print(
            f"{self.name}: {self._totals()}; {how}", highlight=False, soft_wrap=True
        )

    def line(self) -> str:
        last = self._last
        if not last:
            return f"{self.name}: waiting for the first batch"
        batch_s = last["durationMs"].get("triggerExecution", 0) / _MS_PER_S
        rate = last["numInputRows"] / batch_s if batch_s else 0.0
        parts = [
            f"{self.rows:,} rows",
            f"{rate:,.0f} rows/s",
            f"lag {_lag(last)}",
            f"batch {last.get('batchId')} took {batch_s:.1f} s",
            self._note(),
        ]
        return f"{self.name}: " + ", ".join(part for part in parts if part)

    def _totals(self) -> str:
        parts = [f"{self.rows:,} rows in {self.batches:,} batches", self._note()]
        return ", ".join(part for part in parts if part)

    def _look(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        mark = None if last is None else (last["batchId"], last["timestamp"])
        if mark == self._newest:
            return  # fetching the last hundred reports is slow: only when there is a new one
        self._newest = mark
        for progress in query.recentProgress:
            if progress["batchId"] > self._seen and "addBatch" in progress["durationMs"]:
                self._seen = progress["batchId"]
                self._last = _plain(progress)
                self.rows += progress["numInputRows"]
                self.batches += 1

    def _show(self, live: Live) -> None:
        if self._console.is_terminal:
            live.update(Text(self.line()))
        elif time.monotonic() - self._printed_s >= LINE_EVERY_S:
            self._console.print(self.line(), highlight=False, soft_wrap=True)
            self._printed_s = time.monotonic()

    def _finish_batch(self, query: StreamingQuery, stop: Stop) -> None:
        deadline_s = time.monotonic() + STOP_S_MAX
        seen = self._seen
        while query.isActive and query.status["isTriggerActive"] and self._seen == seen:
            if stop.at_once.wait(POLL_S) or time.monotonic() > deadline_s:
                break
            self._look(query)


def _raise_failure(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise NsqError(first_sentence(str(failure)))


def first_sentence(text: str) -> str:
    """The sentence for the user in the text of an exception of Spark's, which also has traces."""
    if full := _FULL_DISK.search(text):
        return (
            f"a disk is full ({full[0]}): that of the table, of the checkpoint or of "
            "spark.local.dir. With room again, the same command goes on from here"
        )
    for line in reversed(text.splitlines()):
        kind, colon, said = line.strip().partition(": ")
        if colon and kind.startswith("pyspark_nsq.errors."):
            return said
    # What Python raised in Spark is the first line after its trace that is not part of it.
    _, trace, rest = text.rpartition(_TRACE)
    raised = (line for line in rest.splitlines() if line and not line[0].isspace())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next(raised, None) if trace else None
    return reason or (lines[0] if lines else "Spark gives no reason")


def _lag(progress: Mapping[str, Any]) -> str:
    rows = lag(progress)
    if rows is not None:
        return f"{rows:,}"
    nodes = away(progress)
    without = f" ({', '.join(nodes)} away)" if nodes else ""
    return f"at least {least_lag(progress):,}{without}"


def _plain(progress: Any) -> Mapping[str, Any]:
    return dict(progress)
