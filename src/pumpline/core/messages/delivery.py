"""A channel's delivery state: which offsets of the log are where on their way to being finished.

Every offset below `next` that is not finished is in exactly one place:

| place      | meaning                                                                     |
|------------|-----------------------------------------------------------------------------|
| a lease    | in flight to one consumer until a deadline (`leases`, one per consumer)     |
| `ready`    | came back (requeued, timed out, owner gone, deferral over), its turn is now |
| `behind`   | came back, and waits for offsets that were never delivered                  |
| `deferred` | waits for its due time                                                      |
| withdrawn  | on its way to somewhere else; the owner finishes it when it is there        |

Offsets from `next` on are fresh: never touched. What comes back is told after which of them its
turn is, so that a message that always comes back cannot keep the others from going out. A restart
forgets the turns: then everything that came back is `ready`.

The state knows no bytes, sockets or clocks: callers
pass the time, in nanoseconds of one steady clock, and fetch frames from the log themselves.

What consumers finish is added to `answered` as it comes, and counted as finished together: once a
tick, or as soon as anybody asks what is finished (`settle`).

Attempts are kept only where they differ from the rule "delivered once": 0 for what was deferred
at publish, n after n deliveries; those of deferred messages with their due times. `take_delta`
gives what changed since it was last called, which is all a checkpoint has to write.
"""

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from itertools import chain, filterfalse, islice
from typing import NamedTuple, TypeVar

from pumpline.core.messages.deferred import Deferred, Pending, Pendings, flat_of
from pumpline.core.messages.finished import Finished
from pumpline.core.messages.leases import NEVER_NS
from pumpline.core.messages.spans import Span, gaps, joined, length, outside

WAKE_MAX = 5000  # messages at once: 3 ms
SCAN_MAX = 50_000  # messages that came back, to find the oldest: 2 ms

T = TypeVar("T")


class DeliveryDelta(NamedTuple):
    """What changed between two checkpoints, or the whole state (a snapshot)."""

    low: int
    next: int
    finished: Collection[Span]  # of a snapshot: in no order
    pending: Pendings


class Delivery:
    __slots__ = (
        "_changed",
        "_deferred",
        "_deferred_since",
        "_finished",
        "_finished_since",
        "answered",
        "attempts",
        "behind",
        "behind_count",
        "delayed",
        "next",
        "on_settled",
        "ready",
        "skips",
    )

    def __init__(self, start: int) -> None:
        self.next = start
        self.answered: list[Span] = []  # finished by consumers, and not settled yet
        self.on_settled: Callable[[list[Span]], None] | None = None  # called with what was finished
        self._finished = Finished(start)
        self.ready: deque[int] = deque()
        # (end, offsets): their turn is when `next` reaches `end`. Ends rise, and lie above `next`.
        self.behind: deque[tuple[int, list[int]]] = deque()
        self.behind_count = 0
        self.skips: deque[Span] = deque()  # spans above `next` to step over, in order, apart
        self.attempts: dict[int, int] = {}
        # Published with a delay that is over, and unfinished, in the order of their due times.
        self.delayed: dict[int, None] = {}
        self._deferred = Deferred()
        # Since the last delta. What is in `_changed` was deferred before, if it is in both.
        self._deferred_since = array("q")
        self._changed: dict[int, None] = {}
        self._finished_since: list[Span] = []

    @property
    def finished(self) -> Finished:
        if self.answered:
            self.settle()
        return self._finished

    @property
    def deferred_count(self) -> int:
        return self._deferred.count

    @property
    def low(self) -> int:
        """Everything below is finished."""
        return self.finished.low

    def settle(self) -> None:
        """Count what consumers have answered as finished, in as few spans as it is."""
        if self.answered:
            spans = joined(self.answered)
            self.answered.clear()
            self.finish(spans)
            if self.on_settled is not None:
                self.on_settled(spans)

    @property
    def high(self) -> int:
        """Everything this state knows of lies below."""
        return max(self.next, self.skips[-1][1]) if self.skips else self.next

    def waiting(self, limit: int) -> int:
        """How many messages below `limit` could go out now, one after another."""
        return len(self.ready) + self.behind_count + self.fresh(limit)

    def fresh(self, limit: int) -> int:
        """How many of them were never delivered."""
        fresh = limit - self.next
        if self.skips:
            fresh -= sum(min(b, limit) - a for a, b in self.skips if a < limit)
        return max(fresh, 0)

    def fresh_until(self, limit: int) -> int:
        """The end of the run of fresh offsets from `next`, after stepping over skips, that may go
        out before anything that came back."""
        while self.skips and self.skips[0][0] <= self.next:
            self.next = max(self.next, self.skips.popleft()[1])
        if self.skips:
            limit = min(limit, self.skips[0][0])
        if self.behind:
            self.advance(self.next)
            if self.behind:
                limit = min(limit, self.behind[0][0])
        return limit

    def advance(self, end: int) -> None:
        """What was fresh below `end` is so no more: it may be the turn of what came back."""
        self.next = end
        while self.behind and self.behind[0][0] <= end:
            self.let_pass()

    def let_pass(self) -> bool:
        """Let the first that wait for fresh offsets wait no longer; return whether any did."""
        if not self.behind:
            return False
        _, offsets = self.behind.popleft()
        self.behind_count -= len(offsets)
        self.ready.extend(offsets)
        return True

    def take_ready(self, first: int, end: int, count: int) -> list[int]:
        """Take the first that came back, as long as they are in [first, end), `count` at most."""
        ready = self.ready
        taken: list[int] = []
        while ready and len(taken) < count and first <= ready[0] < end:
            taken.append(ready.popleft())
        return taken

    def upcoming(self, count: int) -> list[int]:
        """The first that came back."""
        return list(islice(self.ready, count))

    def put_back(self, offsets: Sequence[int]) -> None:
        """These were taken from `ready`, and are first in line again."""
        self.ready.extendleft(reversed(offsets))

    def next_attempts(self, offsets: Iterable[int]) -> list[int]:
        """Which attempt the next delivery of each is."""
        attempts = self.attempts
        return [attempts.get(offset, 1) + 1 for offset in offsets]

    def redelivered(self, offsets: Sequence[int], attempts: Iterable[int]) -> None:
        """Offsets taken from `ready` are leased; this was which attempt of each."""
        self.attempts.update(zip(offsets, attempts, strict=False))
        self._changed.update(dict.fromkeys(offsets))

    def finish(self, spans: Iterable[Span]) -> None:
        """Spans of leased offsets are done with; the caller removed the leases."""
        finished = self._finished
        for start, end in spans:
            if self.attempts:
                self._forget(start, end)
            finished.add(start, end)
            if end > finished.low:
                self._finished_since.append((start, end))

    def oldest(self, leased: Iterable[Collection[int]], limit: int) -> tuple[int, int]:
        """The lowest offset below `limit` that is neither finished nor deferred nor in `delayed`,
        and the first one in `delayed`; `limit` for none. The message that waits longest is one of
        the two. `leased`: the offsets that each consumer has in flight.

        If there are deferred messages, only the first SCAN_MAX that came back are looked at.
        """
        low = min(self.low, limit)
        delayed = self.delayed
        if not self._deferred.count and not delayed:
            return low, limit
        returned = chain(self.ready, *(offsets for _, offsets in self.behind))
        touched = chain(islice(returned, SCAN_MAX), *leased)
        oldest = min(filterfalse(delayed.__contains__, touched), default=limit)
        fresh = self.next
        for start, end in self.skips:
            if start > fresh:
                break
            fresh = end
        return min(oldest, fresh, limit), next(iter(delayed), limit)

    def requeue(self, offsets: Sequence[int], after: int = 0) -> None:
        """Leased offsets are to go out again, once what is fresh below `after` has. There is
        nothing to note: to a restart they are what they were, leased."""
        self._line_up(offsets, after)

    def withdraw(self, offset: int) -> None:
        """A leased offset, or one taken from `ready`, goes elsewhere: finished when it is there,
        ready again if a restart comes first."""
        self.attempts.setdefault(offset, 1)
        self._changed[offset] = None

    def defer(self, start: int, end: int, due_ns: int) -> None:
        """Leased offsets are to go out again at `due_ns`."""
        span = range(start, end)
        attempts = [self.attempts.pop(offset, 1) for offset in span]
        if self.delayed:
            for offset in span:
                self.delayed.pop(offset, None)
        if self._changed:
            for offset in span:
                self._changed.pop(offset, None)
        self._defer(due_ns, span, attempts)

    def defer_fresh(self, flat: "array[int]") -> None:
        """The messages from `next` on were published with a delay, and go out when they are due:
        due times, offsets and attempts in turn (`deferred.flat_of_dues`)."""
        self.advance(self.next + len(flat) // 3)
        self._defer_each(flat)

    def defer_ahead(self, flat: "array[int]") -> None:
        """As `defer_fresh`, of messages from `high` on, in order: know of them already."""
        offsets = flat[1::3]
        is_run = offsets[-1] - offsets[0] == len(offsets) - 1
        spans = [(offsets[0], offsets[-1] + 1)] if is_run else joined((o, o + 1) for o in offsets)
        for start, end in spans:
            self.fresh_until(end)
            if self.next >= start:
                self.advance(end)
                continue
            touches = bool(self.skips) and self.skips[-1][1] == start
            self.skips.append((self.skips.pop()[0] if touches else start, end))
        self._defer_each(flat)

    def next_due_ns(self) -> int:
        return self._deferred.next_due_ns()

    def deferred(self, offsets: Set[int]) -> dict[int, Pending]:
        """Those of `offsets` that are deferred."""
        return self._deferred.find(offsets)

    def wake(self, now_ns: int, after: int = 0) -> int:
        """Deferred messages that are due, up to WAKE_MAX of them, come back, to go out once what is
        fresh below `after` has; returns how many."""
        offsets, attempts = self._deferred.take(now_ns, WAKE_MAX)
        self.attempts.update(zip(offsets, attempts, strict=True))
        if 0 in attempts:  # published with a delay, and never delivered
            tried = zip(offsets, attempts, strict=True)
            self.delayed.update((offset, None) for offset, count in tried if not count)
        if offsets:
            self._line_up(offsets, after)
        return len(offsets)

    def skip(self, start: int, end: int) -> int:
        """What of [start, end) the channel has not seen yet is not for it: emptied, retired.

        Returns how many messages that is.
        """
        unseen = gaps(max(start, self.next), end, self.skips)
        for a, b in unseen:
            self._finished.add(a, b)
            self._finished_since.append((a, b))
        self._step_over(unseen)
        return length(unseen)

    def expire(self, end: int) -> int:
        """Finish what is below `end` and neither leased nor deferred; returns how many."""
        returned = [self.ready, *(offsets for _, offsets in self.behind)]
        old = sorted(offset for offsets in returned for offset in offsets if offset < end)
        if old:
            self.ready = deque(offset for offset in self.ready if offset >= end)
            left = [(after, [o for o in offsets if o >= end]) for after, offsets in self.behind]
            self.behind = deque(left)
            self.behind_count = sum(len(offsets) for _, offsets in left)
            self.finish((offset, offset + 1) for offset in old)
        return len(old) + self.skip(self.next, end)

    def drop(self, count: int, end: int) -> int:
        """Finish up to `count` messages below `end` that are not leased: those that came back
        first, then the oldest never delivered, then deferred ones. Returns how many."""
        while len(self.ready) < count and self.let_pass():
            pass
        returned = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        self.finish((offset, offset + 1) for offset in returned)
        dropped = len(returned)
        fresh_end = self.next
        for start, stop in gaps(self.next, end, self.skips):
            if dropped >= count:
                break
            fresh_end = min(stop, start + count - dropped)
            dropped += fresh_end - start
        self.skip(self.next, fresh_end)
        if dropped < count and self._deferred.count:
            offsets, _ = self._deferred.take(NEVER_NS, count - dropped)
            self.finish(joined((offset, offset + 1) for offset in offsets))
            dropped += len(offsets)
        return dropped

    def seek(self, offset: int) -> None:
        """Go on from `offset`: all below is finished, all from there on was never delivered.

        The caller clears the leases. A delta cannot tell of going back: a snapshot has to follow.
        """
        self.ready.clear()
        self.behind.clear()
        self.behind_count = 0
        self.skips.clear()
        self._deferred = Deferred()
        self.attempts.clear()
        self.delayed.clear()
        self.forget_changes()
        self.answered.clear()
        self._finished = Finished(offset)
        self.next = offset

    def take_delta(self) -> DeliveryDelta:
        """What changed since the last call."""
        low = self.low  # which settles
        finished = [span for span in self._finished_since if span[1] > low]
        attempts = self.attempts
        changed = {o: attempts[o] for o in self._changed if o in attempts}
        pending = Pendings(self._deferred_since, changed)
        self._start_delta()
        return DeliveryDelta(low, self.next, finished, pending)

    def snapshot(self) -> DeliveryDelta:
        """The whole state; what is leased now is ready in it. Starts a new delta."""
        self.settle()
        self._start_delta()
        pending = Pendings(self._deferred.copy(), self.attempts.copy())
        return DeliveryDelta(self.low, self.next, self.finished.unordered(), pending)

    def forget_changes(self) -> None:
        """Forget what changed: this state is never written."""
        if self._finished_since or self._changed or self._deferred_since:
            self._start_delta()

    def _start_delta(self) -> None:
        self._finished_since = []
        self._changed = {}
        self._deferred_since = array("q")

    def _line_up(self, offsets: Sequence[int], after: int) -> None:
        """Put offsets that come back behind what is fresh below `after`, and what came before."""
        if self.behind:
            after = max(after, self.behind[-1][0])
        if after <= self.next:
            self.ready.extend(offsets)
            return
        if self.behind and self.behind[-1][0] == after:
            self.behind[-1][1].extend(offsets)
        else:
            self.behind.append((after, list(offsets)))
        self.behind_count += len(offsets)

    def _defer(self, due_ns: int, offsets: Sequence[int], attempts: Sequence[int]) -> None:
        flat = flat_of(due_ns, offsets, attempts)
        self._deferred.add(flat, due_ns)
        self._deferred_since.extend(flat)

    def _defer_each(self, flat: "array[int]") -> None:
        self._deferred.add_each(flat)
        self._deferred_since.extend(flat)

    def _step_over(self, spans: list[Span]) -> None:
        self.skips = deque(joined([*self.skips, *spans], self.next))
        self.fresh_until(self.next)

    def _forget(self, start: int, end: int) -> None:
        _forget_span(self.attempts, start, end)
        if self.delayed:  # each of them is in `attempts` as well
            _forget_span(self.delayed, start, end)


def _forget_span(by_offset: dict[int, T], start: int, end: int) -> None:
    if end - start <= len(by_offset):
        for offset in range(start, end):
            by_offset.pop(offset, None)
    else:
        for offset in [o for o in by_offset if start <= o < end]:
            del by_offset[offset]


def restore(deltas: Iterable[DeliveryDelta], gone: Iterable[Span] = ()) -> Delivery:
    """The state that a snapshot and the deltas after it describe, with nothing leased. What is in
    `gone` is finished: the log does not have it any more."""
    low = after = 0
    spans = list(gone)
    pending = array("q")
    for delta in deltas:
        low = max(low, delta.low)
        after = max(after, delta.next)
        spans += delta.finished
        pending.extend(delta.pending.flat())
    places = dict(zip(pending[1::3], range(0, len(pending), 3), strict=True))  # the last counts
    state = Delivery(low)
    for start, end in joined(spans, low):
        state.finished.add(start, end)
    state.next = max(after, state.low)
    ahead = outside(sorted(o for o in places if o >= state.next), state.finished.spans())
    skips = [span for span in state.finished.spans() if span[1] > state.next]
    state.skips.extend(joined(skips + [(o, o + 1) for o in ahead], state.next))
    behind = state.finished.gaps(state.low, state.next)
    unfinished = chain.from_iterable(range(start, end) for start, end in behind)
    deferred = array("q")
    for offset in chain(unfinished, ahead):
        at = places.get(offset)
        if at is None:
            state.ready.append(offset)
        elif pending[at]:
            deferred.extend(pending[at : at + 3])
        else:
            state.attempts[offset] = pending[at + 2]
            if not pending[at + 2]:
                state.delayed[offset] = None
            state.ready.append(offset)
    state._deferred.add_each(deferred)
    return state
