"""The tick: what happens, in this order, after the sockets of one loop iteration were read.

1. Connections have parsed the commands they received (that part runs in `buffer_updated`).
2. One commit writes all published messages of all topics (`log.group_commit`).
3. Only then are publishers answered, and channels can read the messages.
4. Every channel with news merges its finished ranges, and dispatches ready messages to consumers
   with credit. A consumer whose credit is used up gets its messages at once.
5. Every connection with more output writes it, in one write: also the answers to publishes, unless
   the connection waited for one outcome only.

Work for a tick is announced with `publish`, `deliver`, `dispatch` and `write`; the first of them
schedules the tick, once. The clocks are read at most once a tick.

**Coalesced delivery.** A message that is delivered alone costs a write to its consumer's socket
and, later, the read of its FIN: some 20 us, most of it the kernel's. Up to CHANNELS_AT_ONCE
channels with new messages are served in their tick. If there are more, they wait, and are then
served together, each with all messages that came meanwhile. The pause between two coalesced
deliveries is PAUSE_RATIO x the duration of the last one, so that they take at most a third of the
time: with 100 busy topics some milliseconds. NSQ's nsqd waits for the output_buffer_timeout of a
client, 250 ms, or until its RDY is used up.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pumpline.log.cursor import Clocks

if TYPE_CHECKING:  # a channel announces itself here
    from pumpline.nsqd.queue.channel import Channel

CHANNELS_AT_ONCE = 8  # with new messages, served in their tick
CHANNELS_PER_TICK = 200  # of a coalesced delivery; then others have their turn
PAUSE_RATIO = 2.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.002, 0.1

_NS_PER_S = 1_000_000_000
_LOG = logging.getLogger(__name__)


class Dispatching(Protocol):
    def dispatch(self) -> None: ...


class Writing(Protocol):
    def flush(self) -> None: ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Tick:
    __slots__ = (
        "_begun_ns",
        "_call_soon",
        "_coalesced",
        "_delivered",
        "_dispatching",
        "_is_coalescing",
        "_is_publishing",
        "_pause_s",
        "_scheduled",
        "_serving",
        "_serving_count",
        "_steady_clock",
        "_steady_ns",
        "_wall_clock",
        "_wall_ns",
        "_writing",
        "commit",
        "later",
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
        self.commit: Callable[[], None] = lambda: None  # writes published messages
        self._call_soon = call_soon
        self._steady_clock = steady_clock
        self._wall_clock = wall_clock
        self._scheduled = False
        self._is_publishing = False
        self._dispatching: dict[Dispatching, None] = {}
        self._writing: dict[Writing, None] = {}
        self._steady_ns = 0
        self._wall_ns = 0
        self._delivered = 0  # channels with new messages in this tick
        self._coalesced: dict[Channel, int] = {}  # that wait; messages below the offset do not
        self._is_coalescing = False  # a coalesced delivery runs, or a timer for one
        self._serving: list[Channel] = []
        self._serving_count = 0
        self._begun_ns = 0  # when the last coalesced delivery began
        self._pause_s = PAUSE_S_MIN  # until the next one

    @property
    def steady_ns(self) -> int:
        """The steady clock; once a tick is scheduled, the same until it has run."""
        if not self._scheduled:
            return self._steady_clock()
        if not self._steady_ns:
            self._set_clocks()
        return self._steady_ns

    @property
    def wall_ns(self) -> int:
        """Nanoseconds since 1970; once a tick is scheduled, the same until it has run."""
        if not self._scheduled:
            return self._wall_clock()
        if not self._steady_ns:
            self._set_clocks()
        return self._wall_ns

    def _set_clocks(self) -> None:
        """Both at one moment: `steady_shift_ns` would give times too early by what lies between."""
        self._steady_ns = self._steady_clock()
        self._wall_ns = self._wall_clock()

    def read_clocks(self) -> Clocks:
        """Both clocks as they are now, also during a tick."""
        steady_ns = self._steady_clock()
        return Clocks(steady_ns, self._wall_clock() - steady_ns)

    def steady_shift_ns(self, published_ns: int) -> int:
        """What to add to the due date of a message to get its time on the steady clock. It is then
        at most the message's delay from now: if it was published after the present date, the wall
        clock was set back."""
        return self.steady_ns - max(self.wall_ns, published_ns)

    # -- announcing ---------------------------------------------------------------------------

    def publish(self) -> int:
        """Something is to be committed; returns `wall_ns`."""
        self._is_publishing = True
        if not self._scheduled:
            self._schedule()
        if not self._steady_ns:
            self._set_clocks()
        return self._wall_ns

    def dispatch(self, channel: Dispatching) -> None:
        self._dispatching[channel] = None
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
        self._delivered = 0
        if self._is_publishing:
            self._is_publishing = False
            try:
                self.commit()
            except Exception:
                _LOG.exception("a commit failed")
        dispatching, self._dispatching = self._dispatching, {}
        for channel in dispatching:
            try:
                channel.dispatch()
            except Exception:
                _LOG.exception("a channel failed to dispatch")
        writing, self._writing = self._writing, {}
        for connection in writing:
            try:
                connection.flush()
            except Exception:
                _LOG.exception("a connection failed to write")
        self._scheduled = False
        self._steady_ns = self._wall_ns = 0
        if self._is_publishing or self._dispatching or self._writing:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._call_soon(self.run)

    # -- coalesced delivery -------------------------------------------------------------------

    def deliver(self, channel: "Channel") -> bool:
        """The channel has new messages, and consumers for them: serve it in this tick, or later
        with many others. Returns whether it is in this tick."""
        self._delivered += 1
        is_quiet = self._delivered <= CHANNELS_AT_ONCE and not self._coalesced
        if is_quiet or not channel.may_wait:
            self._coalesced.pop(channel, None)
            self.dispatch(channel)
            return True
        if channel not in self._coalesced:
            if not self._is_coalescing:
                self._is_coalescing = True
                self.later(self._pause_s, self._begin_coalesced)
            self._coalesced[channel] = channel.delivered_until
        return False

    def deliverable(self, channel: "Channel", end: int) -> int:
        """How far a channel may deliver, whose messages end at `end`."""
        return self._coalesced.get(channel, end) if self._coalesced else end

    def _begin_coalesced(self) -> None:
        self._serving = list(self._coalesced)
        self._serving_count = len(self._serving)
        self._begun_ns = self._steady_clock()
        self._serve_some()

    def _serve_some(self) -> None:
        for channel in self._serving[:CHANNELS_PER_TICK]:
            self._serve(channel)
        del self._serving[:CHANNELS_PER_TICK]
        # The tick comes first: it delivers.
        self.later(0, self._serve_some if self._serving else self._end_coalesced)

    def _serve(self, channel: "Channel") -> None:
        if self._coalesced.pop(channel, None) is not None:
            channel.served()
            self.dispatch(channel)

    def _end_coalesced(self) -> None:
        took_s = (self._steady_clock() - self._begun_ns) / _NS_PER_S
        self._pause_s = min(max(PAUSE_RATIO * took_s, PAUSE_S_MIN), PAUSE_S_MAX)
        if self._serving_count < CHANNELS_AT_ONCE:  # few are busy: serve each in its tick
            for channel in list(self._coalesced):
                self._serve(channel)
        if self._coalesced:
            self.later(self._pause_s, self._begin_coalesced)
        else:
            self._is_coalescing = False
