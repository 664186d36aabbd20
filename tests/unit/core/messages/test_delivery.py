"""A channel's delivery state: examples, each of which was once wrong or easily could be."""

from array import array

from pumpline.core.messages.deferred import flat_of
from pumpline.core.messages.delivery import Delivery, restore
from pumpline.core.messages.leases import NEVER_NS, Leases
from tests.kit.delivery import redeliver


def deliver(state: Delivery, end: int) -> None:
    """Everything up to `end` goes out for the first time."""
    assert state.fresh_until(end) == end
    state.next = end


def delayed(start: int, end: int, due_ns: int) -> "array[int]":
    """[start, end) was published with a delay."""
    return flat_of(due_ns, range(start, end), [0] * (end - start))


# -- what is not for the channel ------------------------------------------------------------------


def test_skipping_twice_counts_once() -> None:
    """An ephemeral channel drops its overflow again after messages came back."""
    state = Delivery(0)
    assert state.skip(8, 10) == 2
    assert state.skip(7, 10) == 1
    assert list(state.skips) == [(7, 10)]
    assert state.waiting(10) == 7


def test_skips_need_not_come_in_order() -> None:
    state = Delivery(0)
    assert state.skip(20, 30) == 10
    assert state.skip(10, 15) == 5
    assert state.skip(25, 35) == 5
    assert list(state.skips) == [(10, 15), (20, 35)]
    assert state.waiting(40) == 20
    assert state.fresh_until(40) == 10
    deliver(state, 10)
    assert state.fresh_until(40) == 20
    assert state.next == 15


def test_a_skip_from_the_next_offset_joins_those_above_it() -> None:
    state = Delivery(5)
    state.skip(10, 12)
    assert state.skip(5, 11) == 5
    assert (state.next, state.low, list(state.skips)) == (12, 12, [])
    assert state.waiting(13) == 1


def test_dropping_overflow_every_tick_leaves_one_span() -> None:
    state = Delivery(0)
    for end in range(10, 1000):
        state.skip(end - 1, end)
    assert list(state.skips) == [(9, 999)]


def test_a_skip_leaves_what_waits_for_its_time() -> None:
    """Overflow is dropped around a delayed message, which stays in one place only."""
    state = Delivery(0)
    state.defer_ahead(delayed(6, 8, 50))
    assert state.skip(4, 10) == 4
    assert (state.deferred_count, state.waiting(10)) == (2, 4)
    state.wake(50)
    assert list(state.ready) == [6, 7]
    deliver(state, 4)
    redeliver(state)
    redeliver(state)
    state.finish([(6, 8), (0, 4)])
    assert (state.low, state.finished.above, state.waiting(10)) == (10, 0, 0)


def test_what_was_skipped_is_not_counted_twice_after_a_restart() -> None:
    """Finished and skipped offsets make one span across the next offset."""
    state = Delivery(0)
    deliver(state, 5)
    state.finish([(3, 5)])
    state.skip(5, 8)
    assert state.next == 8
    state.skip(9, 10)
    found = restore([state.snapshot()])
    assert list(found.ready) == [0, 1, 2]
    assert found.waiting(12) == 3 + 3
    early = Delivery(0)
    deliver(early, 5)
    before = early.snapshot()._replace(finished=[(3, 8)])
    assert restore([before]).waiting(10) == 3 + 2


# -- delays ---------------------------------------------------------------------------------------


def test_a_delay_ahead_is_known_before_its_turn_comes() -> None:
    state = Delivery(0)
    state.defer_ahead(delayed(3, 5, 70))
    state.defer_ahead(delayed(5, 6, 60))
    assert state.next_due_ns() == 60
    assert list(state.skips) == [(3, 6)]
    assert (state.high, state.waiting(8)) == (6, 5)
    assert state.wake(60) == 1
    assert redeliver(state) == (5, 1)
    assert state.fresh_until(8) == 3


def test_a_delay_at_the_next_offset_is_not_ahead() -> None:
    state = Delivery(4)
    state.defer_ahead(delayed(4, 6, 70))
    assert (state.next, list(state.skips), state.deferred_count) == (6, [], 2)


def test_a_delay_ahead_survives_a_restart_in_its_place() -> None:
    state = Delivery(0)
    state.defer_ahead(delayed(3, 5, 70))
    found = restore([state.snapshot()])
    assert (found.next, found.deferred_count, found.next_due_ns()) == (0, 2, 70)
    assert found.waiting(6) == 4
    assert found.fresh_until(6) == 3


def test_delayed_messages_have_their_first_attempt_when_due() -> None:
    state = Delivery(0)
    state.defer_fresh(delayed(0, 1, 70))
    state.wake(70)
    assert redeliver(state) == (0, 1)
    state.requeue([0])
    assert redeliver(state) == (0, 2)


# -- deltas -------------------------------------------------------------------------------------


def test_a_journal_says_only_what_changed() -> None:
    state = Delivery(0)
    deliver(state, 6)
    state.finish([(2, 3)])
    state.requeue([4])
    state.take_delta()
    state.finish([(5, 6)])
    delta = state.take_delta()
    assert (delta.low, delta.next, delta.finished, len(delta.pending)) == (0, 6, [(5, 6)], 0)


def test_changes_nobody_will_ask_for_can_be_forgotten() -> None:
    state = Delivery(0)
    deliver(state, 6)
    state.finish([(2, 3)])
    state.requeue([4])
    state.forget_changes()
    delta = state.take_delta()
    assert (delta.finished, len(delta.pending)) == ([], 0)
    assert list(state.ready) == [4]


def test_emptying_is_final() -> None:
    state = Delivery(0)
    deliver(state, 4)
    state.requeue([2])
    state.defer(3, 4, 99)
    state.defer_ahead(delayed(6, 7, 99))
    snapshot = state.snapshot()
    state.seek(8)
    found = restore([snapshot, state.take_delta()])
    for each in (state, found):
        assert (each.low, each.next, each.waiting(8), each.deferred_count) == (8, 8, 0, 0)
        assert each.next_due_ns() == NEVER_NS


# -- leases ---------------------------------------------------------------------------------------


def test_a_touch_moves_the_deadline_but_not_past_the_limit() -> None:
    leases = Leases()
    leases.add(0, 2, 100)
    leases.touch(0, now_ns=90, timeout_ns=100, timeout_max_ns=150)
    assert leases.deadlines == {0: 150, 1: 100}
    assert leases.expire(100) == [1]
    assert leases.floor_ns == 150


def test_a_touch_that_shortens_a_lease_lowers_the_bound() -> None:
    """`--max-msg-timeout` below `--msg-timeout`: the cap comes before the deadline."""
    leases = Leases()
    leases.add(0, 1, 100)
    leases.touch(0, now_ns=10, timeout_ns=100, timeout_max_ns=50)
    assert leases.deadlines == {0: 50}
    assert leases.floor_ns == 50


def test_what_is_held_longest_is_what_was_delivered_first() -> None:
    leases = Leases()
    assert leases.longest(timeout_ns=100, timeout_max_ns=150) is None
    leases.add(7, 8, 110)  # delivered at 10
    leases.add(3, 5, 120)
    assert leases.longest(timeout_ns=100, timeout_max_ns=150) == (7, 10)
    leases.touch(7, now_ns=50, timeout_ns=100, timeout_max_ns=150)
    assert leases.longest(timeout_ns=100, timeout_max_ns=150) == (7, 10)
    leases.remove(7)
    assert leases.longest(timeout_ns=100, timeout_max_ns=150) == (3, 20)


def test_the_limit_of_an_earlier_delivery_does_not_hold_for_a_later_one() -> None:
    leases = Leases()
    leases.add(0, 1, 100)
    leases.touch(0, now_ns=50, timeout_ns=100, timeout_max_ns=120)
    del leases.deadlines[0]  # finished in bulk
    leases.add(0, 1, 600)
    leases.touch(0, now_ns=590, timeout_ns=100, timeout_max_ns=1000)
    assert leases.deadlines == {0: 690}


def test_every_delivery_is_in_the_journal_after_it() -> None:
    """A kill between two deliveries must not take one of them back."""
    state = Delivery(0)
    deliver(state, 1)
    state.requeue([0])
    deltas = [state.snapshot()]
    for attempts in (2, 3):
        assert redeliver(state) == (0, attempts)
        deltas.append(state.take_delta())
        assert redeliver(restore(deltas)) == (0, attempts + 1)
        state.requeue([0])
        deltas.append(state.take_delta())
