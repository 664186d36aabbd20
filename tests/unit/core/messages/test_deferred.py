"""Deferred messages come out when they are due, in order, however many there are."""

import random

from pumpline.core.messages import deferred as deferred_module
from pumpline.core.messages.deferred import Deferred, Pending, flat_of
from pumpline.core.messages.leases import NEVER_NS

BUCKET_NS = 1 << 26


def filled(dues_ns: list[int]) -> Deferred:
    """The message at offset n is due at dues_ns[n], and was delivered n times."""
    state = Deferred()
    for offset, due_ns in enumerate(dues_ns):
        state.add(flat_of(due_ns, [offset], [offset]), due_ns)
    return state


def test_messages_come_out_in_the_order_of_their_due_times() -> None:
    chance = random.Random(1)
    dues_ns = [chance.randrange(20 * BUCKET_NS) for _ in range(3000)]
    state = filled(dues_ns)
    order = sorted(range(3000), key=lambda offset: (dues_ns[offset], offset))
    taken: list[int] = []
    for now_ns in range(0, 21 * BUCKET_NS, BUCKET_NS // 3):
        due = sum(each <= now_ns for each in dues_ns)
        offsets, attempts = state.take(now_ns, 5000)
        assert offsets == attempts
        taken += offsets
        assert taken == order[:due]
        assert state.count == 3000 - due
        left_ns = [dues_ns[offset] for offset in order[due:]]
        assert state.next_due_ns() == (left_ns[0] if left_ns else NEVER_NS)


def test_no_more_come_out_at_once_than_asked_for() -> None:
    state = filled([5, 4, 3, 2, 1])
    assert state.take(9, 2) == ([4, 3], [4, 3])
    state.add(flat_of(0, [9], [1]), 0)
    assert state.take(9, 3) == ([9, 2, 1], [1, 2, 1])
    assert state.take(9, 3) == ([0], [0])
    assert state.take(9, 3) == ([], [])


def test_very_many_at_one_time_are_never_sorted() -> None:
    count = deferred_module.SORTED_MAX + 1
    state = Deferred()
    state.add(flat_of(BUCKET_NS + 7, range(count), [1] * count), BUCKET_NS + 7)
    assert state.next_due_ns() == 2 * BUCKET_NS
    assert state.take(2 * BUCKET_NS - 1, count) == ([], [])
    found: list[int] = []
    while len(found) < count:
        offsets, _ = state.take(2 * BUCKET_NS, 5000)
        assert 0 < len(offsets) <= 5000
        found += offsets
    assert sorted(found) == list(range(count))
    assert (state.count, state.next_due_ns()) == (0, NEVER_NS)


def test_a_copy_has_all_of_them_once() -> None:
    state = filled([BUCKET_NS * n // 3 for n in range(30)])
    state.take(BUCKET_NS * 4, 3)
    flat = state.copy()
    assert sorted(zip(flat[1::3], flat[2::3], flat[0::3], strict=True)) == [
        (n, n, BUCKET_NS * n // 3) for n in range(3, 30)
    ]


def test_messages_are_found_by_their_offsets() -> None:
    state = filled([BUCKET_NS * n for n in range(30)])
    state.take(BUCKET_NS * 4, 1)
    assert state.find({0, 1, 4, 29, 77}) == {n: Pending(n, n, BUCKET_NS * n) for n in (1, 4, 29)}
