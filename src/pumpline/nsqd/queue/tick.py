"""The tick: what happens, in this order, after the sockets of one loop iteration were read.

1. Connections have parsed the commands they received (that part runs in `buffer_updated`).
2. Every topic published to seals what it was given and appends it to its log, in one write.
3. Only then are publishers answered and channels shown the batch.
4. Every channel with news settles what was finished, and shares what is ready among its consumers
   with credit. One whose credit is used up gets its messages at once.
5. Every connection with more output writes it, in one write: also the answers to publishes, unless
   one topic's outcome was all that the connection waited for.

Work for a tick is announced with `publish`, `share` and `write`; the first announcement schedules
the tick, once. The clocks are read at most once a tick.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from pumpline.log.cursor import Clocks

_LOG = logging.getLogger(__name__)


class Publishing(Protocol):
    def commit(self) -> None: ...


class Sharing(Protocol):
    def share(self) -> None: ...


class Writing(Protocol):
    def flush(self) -> None: ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Tick:
    __slots__ = (
        "_call_soon",
        "_publishing",
        "_scheduled",
        "_sharing",
        "_steady_clock",
        "_steady_ns",
        "_wall_clock",
        "_wall_ns",
        "_writing",
        "later",
        "number",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        later: Callable[[float, Callable[[], None]], TimerHandle],
        steady_clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`later` calls back after a delay, in seconds, and between ticks."""
        self.later = later
        self.number = 0  # of ticks so far
        self._call_soon = call_soon
        self._steady_clock = steady_clock
        self._wall_clock = wall_clock
        self._scheduled = False
        self._publishing: dict[Publishing, None] = {}
        self._sharing: dict[Sharing, None] = {}
        self._writing: dict[Writing, None] = {}
        self._steady_ns = 0
        self._wall_ns = 0

    @property
    def steady_ns(self) -> int:
        """The steady clock; once a tick is scheduled, the same until it has run."""
        if not self._scheduled:
            return self._steady_clock()
        if not self._steady_ns:
            self._steady_ns = self._steady_clock()
        return self._steady_ns

    @property
    def wall_ns(self) -> int:
        """Nanoseconds since 1970; once a tick is scheduled, the same until it has run."""
        if not self._scheduled:
            return self._wall_clock()
        if not self._wall_ns:
            self._wall_ns = self._wall_clock()
        return self._wall_ns

    @property
    def clocks(self) -> Clocks:
        steady_ns = self._steady_clock()
        return Clocks(steady_ns, self._wall_clock() - steady_ns)

    def steady_of(self, date_ns: int, *, delay_ns: int) -> int:
        """A date on the steady clock, at most `delay_ns` from now: a date further away means that
        the wall clock was set back."""
        return self.steady_ns + min(date_ns - self.wall_ns, delay_ns)

    def publish(self, topic: Publishing) -> None:
        self._publishing[topic] = None
        if not self._scheduled:
            self._schedule()

    def share(self, channel: Sharing) -> None:
        self._sharing[channel] = None
        if not self._scheduled:
            self._schedule()

    def write(self, *connections: Writing) -> None:
        for connection in connections:
            self._writing[connection] = None
        if not self._scheduled:
            self._schedule()

    def run(self) -> None:
        """One tick. What its steps announce is done in the same tick if its step is still to come,
        else in the next. A step that fails, which none should, must not stop the others."""
        self.number += 1
        publishing, self._publishing = self._publishing, {}
        for topic in publishing:
            try:
                topic.commit()
            except Exception:
                _LOG.exception("a topic failed to commit")
        sharing, self._sharing = self._sharing, {}
        for channel in sharing:
            try:
                channel.share()
            except Exception:
                _LOG.exception("a channel failed to share")
        writing, self._writing = self._writing, {}
        for connection in writing:
            try:
                connection.flush()
            except Exception:
                _LOG.exception("a connection failed to write")
        self._scheduled = False
        self._steady_ns = self._wall_ns = 0
        if self._publishing or self._sharing or self._writing:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._call_soon(self.run)
