"""A channel's delivery state against a plain model that knows the place of every message.

At any time, what a restart would find (the snapshot and the deltas written so far) must describe
the state as of the last delta with every lease returned: nothing lost, nothing finished back,
attempts and due times kept.
"""

import itertools
from array import array
from collections.abc import Sequence
from enum import Enum, auto

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pumpline.core.messages.delivery import Delivery, DeliveryDelta, restore
from pumpline.core.messages.leases import NEVER_NS, Leases

CONSUMERS = 3
TIMEOUT_NS = 100
TIMEOUT_MAX_NS = 250
AHEAD = st.integers(0, 8)  # how many fresh offsets go out before one that comes back


class Place(Enum):
    FRESH = auto()
    LEASED = auto()
    READY = auto()
    DEFERRED = auto()
    DONE = auto()


class Message:
    """One message as a channel without any cleverness would keep it."""

    def __init__(self) -> None:
        self.place = Place.FRESH
        self.deliveries = 0
        self.due_ns = 0
        self.owner = -1
        self.delivered_ns = 0
        self.deadline_ns = 0

    def copy(self) -> "Message":
        copied = Message()
        copied.__dict__.update(self.__dict__)
        return copied


class DeliveryMachine(RuleBasedStateMachine):
    @initialize(start=st.sampled_from([0, 7]))
    def begin(self, start: int) -> None:
        self.start = start
        self.end = start  # of the log
        self.now_ns = 1000
        self.state = Delivery(start)
        self.leases = [Leases() for _ in range(CONSUMERS)]
        self.messages: dict[int, Message] = {}
        self.ready: list[int] = []  # in the order they are to go out
        self.behind: list[tuple[int, int]] = []  # (end, offset): after what is fresh below `end`
        self._snapshot()

    # -- the log and the clock --------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        for offset in range(self.end, self.end + count):
            self.messages[offset] = Message()
        self.end += count

    @rule(passed_ns=st.integers(1, 150))
    def pass_time(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    # -- deliveries -------------------------------------------------------------------------------

    @rule(consumer=st.integers(0, CONSUMERS - 1), count=st.integers(1, 5))
    def deliver_fresh(self, consumer: int, count: int) -> None:
        until = self.state.fresh_until(self.end)
        start = self.state.next
        self._let_pass(start)
        end = min(start + count, until)
        if start >= end:
            assert not self._at(Place.FRESH)
            return
        fresh = self._at(Place.FRESH)
        assert list(range(start, end)) == fresh[: end - start]
        assert all(end <= turn for turn, _ in self.behind)
        self.state.advance(end)
        self._let_pass(end)
        self._lend(consumer, start, end)

    @rule(dues_in_ns=st.lists(st.integers(1, 300), min_size=1, max_size=4))
    def defer_fresh(self, dues_in_ns: list[int]) -> None:
        """Messages that were published with a delay are met."""
        end = min(self.state.fresh_until(self.end), self.state.next + len(dues_in_ns))
        if self.state.next >= end:
            return
        self.state.defer_fresh(self._delayed(range(self.state.next, end), dues_in_ns))

    @rule(
        dues_in_ns=st.lists(st.integers(0, 300), min_size=1, max_size=6),
        gap=st.integers(0, 4),
    )
    def defer_ahead(self, dues_in_ns: list[int], gap: int) -> None:
        """A batch was published, ahead of where the channel is, some of it with a delay."""
        start = self.state.high + gap
        numbers = range(len(dues_in_ns))
        late = [n for n in numbers if dues_in_ns[n] > 50 and start + n < self.end]
        if late:
            dues_in_ns = [dues_in_ns[n] for n in late]
            self.state.defer_ahead(self._delayed([start + n for n in late], dues_in_ns))

    def _delayed(self, offsets: Sequence[int], dues_in_ns: list[int]) -> "array[int]":
        flat = array("q")
        for offset, due_in_ns in zip(offsets, dues_in_ns, strict=False):
            message = self.messages[offset]
            assert message.place is Place.FRESH
            message.place, message.due_ns = Place.DEFERRED, self.now_ns + due_in_ns
            flat.extend((message.due_ns, offset, 0))
        return flat

    @precondition(lambda self: self.ready)
    @rule(consumer=st.integers(0, CONSUMERS - 1), count=st.integers(1, 5), fit=st.integers(1, 5))
    def deliver_again(self, consumer: int, count: int, fit: int) -> None:
        """What came back and lies in one batch, as far as there is room for it."""
        first, end = self.ready[0] - 2, self.ready[0] + 3
        taken = self.state.take_ready(first, end, count)
        in_batch = itertools.takewhile(lambda offset: first <= offset < end, self.ready)
        assert taken == list(in_batch)[:count]
        attempts = self.state.next_attempts(taken)
        self.state.put_back(taken[fit:])
        del taken[fit:]
        self.state.redelivered(taken, attempts)
        del self.ready[: len(taken)]
        for offset, attempt in zip(taken, attempts, strict=False):
            self._lend(consumer, offset, offset + 1)
            assert attempt == self.messages[offset].deliveries

    @precondition(lambda self: self.behind)
    @rule()
    def let_pass(self) -> None:
        """What is fresh is not in memory: the first that came back need not wait for it."""
        end = self.behind[0][0]
        assert self.state.let_pass()
        self._let_pass(end)

    @precondition(lambda self: self.ready)
    @rule()
    def drop_ready(self) -> None:
        """The message is gone from the log by the time it is to go out again."""
        offset = self.state.ready.popleft()
        assert offset == self.ready.pop(0)
        self.state.finish([(offset, offset + 1)])
        self.messages[offset].place = Place.DONE

    # -- what consumers say -----------------------------------------------------------------------

    @rule(consumer=st.integers(0, CONSUMERS - 1), skip=st.integers(0, 3), count=st.integers(1, 6))
    def finish(self, consumer: int, skip: int, count: int) -> None:
        """A run of FINs, in the order of delivery: spans, as the kernel makes them."""
        leases = self.leases[consumer]
        spans: list[tuple[int, int]] = []
        for offset in list(leases.deadlines)[skip : skip + count]:
            del leases.deadlines[offset]  # as the kernel does, behind the back of `leases`
            self.messages[offset].place = Place.DONE
            if spans and spans[-1][1] == offset:
                spans[-1] = (spans[-1][0], offset + 1)
            else:
                spans.append((offset, offset + 1))
        self.state.finish(spans)

    @rule(consumer=st.integers(0, CONSUMERS - 1), which=st.integers(0, 5), ahead=AHEAD)
    def requeue(self, consumer: int, which: int, ahead: int) -> None:
        if (offset := self._leased(consumer, which)) is not None:
            after = self._after(ahead)
            self.leases[consumer].remove(offset)
            self.state.requeue([offset], after)
            self._come_back([offset], after)

    @rule(
        consumer=st.integers(0, CONSUMERS - 1),
        which=st.integers(0, 5),
        delay_ns=st.integers(1, 300),
    )
    def defer(self, consumer: int, which: int, delay_ns: int) -> None:
        if (offset := self._leased(consumer, which)) is not None:
            self.leases[consumer].remove(offset)
            self.state.defer(offset, offset + 1, self.now_ns + delay_ns)
            message = self.messages[offset]
            message.place, message.due_ns = Place.DEFERRED, self.now_ns + delay_ns

    @rule(consumer=st.integers(0, CONSUMERS - 1), which=st.integers(0, 5))
    def touch(self, consumer: int, which: int) -> None:
        if (offset := self._leased(consumer, which)) is not None:
            self.leases[consumer].touch(
                offset,
                now_ns=self.now_ns,
                timeout_ns=TIMEOUT_NS,
                timeout_max_ns=TIMEOUT_MAX_NS,
            )
            message = self.messages[offset]
            latest_ns = message.delivered_ns + TIMEOUT_MAX_NS
            message.deadline_ns = min(self.now_ns + TIMEOUT_NS, latest_ns)

    @rule(consumer=st.integers(0, CONSUMERS - 1), ahead=AHEAD)
    def leave(self, consumer: int, ahead: int) -> None:
        offsets = self.leases[consumer].clear()
        assert sorted(offsets) == sorted(self._owned(consumer))
        self.state.requeue(offsets, self._after(ahead))
        self._come_back(offsets, self._after(ahead))

    # -- what time does ---------------------------------------------------------------------------

    @rule(consumer=st.integers(0, CONSUMERS - 1), ahead=AHEAD)
    def expire(self, consumer: int, ahead: int) -> None:
        expired = self.leases[consumer].expire(self.now_ns)
        overdue = {o for o in self._owned(consumer) if self.messages[o].deadline_ns <= self.now_ns}
        assert set(expired) == overdue
        self.state.requeue(expired, self._after(ahead))
        self._come_back(expired, self._after(ahead))

    @rule(ahead=AHEAD)
    def wake(self, ahead: int) -> None:
        due = [o for o in self._at(Place.DEFERRED) if self.messages[o].due_ns <= self.now_ns]
        before = {*self.state.ready, *_behind(self.state)}
        assert self.state.wake(self.now_ns, self._after(ahead)) == len(due)
        woken = [o for o in [*self.state.ready, *_behind(self.state)] if o not in before]
        assert sorted(woken) == due
        assert woken == sorted(woken, key=lambda o: (self.messages[o].due_ns, o))
        self._come_back(woken, self._after(ahead))

    # -- what the broker does ---------------------------------------------------------------------

    @rule(start=st.floats(0, 1), length=st.integers(0, 6))
    def skip(self, start: float, length: int) -> None:
        """Not for this channel, though never delivered: emptied, retired, overflow."""
        first = self.start + int(start * (self.end - self.start))
        last = min(first + length, self.end)
        fresh = [o for o in self._at(Place.FRESH) if first <= o < last]
        assert self.state.skip(first, last) == len(fresh)
        for offset in fresh:
            self.messages[offset].place = Place.DONE

    @rule()
    def empty(self) -> None:
        for leases in self.leases:
            leases.clear()
        self.state.seek(self.end)  # the end is never behind: a delta will do
        self.ready.clear()
        self.behind.clear()
        for message in self.messages.values():
            message.place = Place.DONE

    @rule(where=st.floats(0, 1))
    def seek(self, where: float) -> None:
        """Forward or back; a snapshot follows, as the broker sees to it."""
        offset = self.start + int(where * (self.end - self.start))
        for leases in self.leases:
            leases.clear()
        self.state.seek(offset)
        assert (self.state.low, self.state.next) == (offset, offset)
        self.ready.clear()
        self.behind.clear()
        for each, message in self.messages.items():
            message.place = Place.FRESH if each >= offset else Place.DONE
            message.deliveries = 0
        self._snapshot()

    @rule()
    def delta(self) -> None:
        self.deltas.append(self.state.take_delta())
        self._remember()

    @rule()
    def snapshot(self) -> None:
        self._snapshot()

    @rule()
    def restart(self) -> None:
        """Killed: the state is what was written; the log has everything."""
        self.state = restore(self.deltas)
        self.messages, self.end = {o: m.copy() for o, m in self.written.items()}, self.written_end
        self.leases = [Leases() for _ in range(CONSUMERS)]
        for message in self.messages.values():
            if message.place is Place.LEASED:
                message.place = Place.READY
        self.ready = list(self.state.ready)
        self.behind = []
        assert set(self.ready) <= set(self._at(Place.READY))
        for offset in self._at(Place.READY):
            if offset not in self.ready:  # was woken since: its due time is over
                self.messages[offset].place = Place.DEFERRED
                assert self.messages[offset].due_ns <= self.now_ns
        self._snapshot()

    # -- always -----------------------------------------------------------------------------------

    @invariant()
    def every_message_is_in_its_place(self) -> None:
        state = self.state
        self._let_pass(state.next)
        assert list(state.ready) == self.ready
        assert _behind(state) == [offset for _, offset in self.behind]
        done = [o for o in range(self.start, self.end) if o in state.finished]
        assert done == self._at(Place.DONE)
        for consumer, leases in enumerate(self.leases):
            deadlines = {o: self.messages[o].deadline_ns for o in self._owned(consumer)}
            assert leases.deadlines == deadlines
            assert leases.floor_ns <= min(deadlines.values(), default=NEVER_NS)
        deferred = self._at(Place.DEFERRED)
        assert state.deferred_count == len(deferred)
        due_ns = min((self.messages[o].due_ns for o in deferred), default=NEVER_NS)
        assert state.next_due_ns() == due_ns

    @invariant()
    def what_waits_is_counted(self) -> None:
        fresh = self._at(Place.FRESH)
        returned = len(self.ready) + len(self.behind)
        assert self.state.waiting(self.end) == returned + len(fresh)
        limit = self.start + (self.end - self.start) // 2
        if limit >= self.state.next:
            below = [o for o in fresh if o < limit]
            assert self.state.waiting(limit) == returned + len(below)

    @invariant()
    def what_is_to_be_stepped_over_is_in_order_and_apart(self) -> None:
        skips = list(self.state.skips)
        assert all(self.state.next <= a < b for a, b in skips)
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(skips))

    @invariant()
    def attempts_are_kept_only_for_what_needs_them(self) -> None:
        for offset in self.state.attempts:
            assert self.messages[offset].place not in (Place.FRESH, Place.DONE)

    @invariant()
    def a_restart_would_find_the_last_journal(self) -> None:
        found = restore(self.deltas)
        assert found.low >= self.start
        ready, deferred = set(found.ready), _deferred(found)
        assert len(ready) == len(found.ready)
        assert found.deferred_count == len(deferred)
        for offset, message in self.written.items():
            assert (offset in found.finished) == (message.place is Place.DONE)
            if message.place is Place.FRESH:
                assert offset >= found.next
                assert offset not in ready and offset not in deferred
            elif message.place is Place.DEFERRED:
                assert deferred[offset] == message.due_ns
            elif message.place is Place.LEASED:
                assert offset in ready
            elif message.place is Place.READY:
                # Woken or not by the time of the delta, its due time is over.
                assert offset in ready or deferred[offset] <= self.written_ns
            if offset in ready:
                assert found.attempts.get(offset, 1) == message.deliveries
            if offset in deferred:
                assert found.deferred({offset})[offset].attempts == message.deliveries
        fresh = sum(m.place is Place.FRESH for m in self.written.values())
        assert found.waiting(self.written_end) == len(ready) + fresh

    # -- parts ------------------------------------------------------------------------------------

    def _at(self, place: Place) -> list[int]:
        return [o for o, message in self.messages.items() if message.place is place]

    def _owned(self, consumer: int) -> list[int]:
        return [o for o in self._at(Place.LEASED) if self.messages[o].owner == consumer]

    def _leased(self, consumer: int, which: int) -> int | None:
        offsets = self._owned(consumer)
        return offsets[which % len(offsets)] if offsets else None

    def _lend(self, consumer: int, start: int, end: int) -> None:
        deadline_ns = self.now_ns + TIMEOUT_NS
        self.leases[consumer].add(start, end, deadline_ns)
        for offset in range(start, end):
            message = self.messages[offset]
            message.place, message.owner = Place.LEASED, consumer
            message.deliveries += 1
            message.delivered_ns, message.deadline_ns = self.now_ns, deadline_ns

    def _after(self, ahead: int) -> int:
        return min(self.state.next + ahead, self.end)

    def _come_back(self, offsets: list[int], after: int) -> None:
        self._let_pass(self.state.next)
        for offset in offsets:
            self.messages[offset].place = Place.READY
            end = max(after, self.behind[-1][0]) if self.behind else after
            self.behind.append((end, offset))
        self._let_pass(self.state.next)

    def _let_pass(self, end: int) -> None:
        """What is fresh below `end` has gone out."""
        while self.behind and self.behind[0][0] <= end:
            self.ready.append(self.behind.pop(0)[1])

    def _snapshot(self) -> None:
        self.deltas: list[DeliveryDelta] = [self.state.snapshot()]
        self._remember()

    def _remember(self) -> None:
        self.written = {o: message.copy() for o, message in self.messages.items()}
        self.written_end = self.end
        self.written_ns = self.now_ns


def _behind(state: Delivery) -> list[int]:
    return [offset for _, offsets in state.behind for offset in offsets]


def _deferred(state: Delivery) -> dict[int, int]:
    """Offset -> due time."""
    return {o: each.due_ns for o, each in state.deferred(set(range(state.high))).items()}


TestDelivery = DeliveryMachine.TestCase
