"""Whoever asks a delivery state what is finished is told of what consumers have answered."""

from collections.abc import Callable, Collection

import pytest

from pumpline.core.messages.delivery import Delivery
from pumpline.core.messages.spans import Span


@pytest.fixture
def delivery() -> Delivery:
    """Ten messages are delivered; a consumer has answered four of them, in three commands."""
    state = Delivery(0)
    state.next = 10
    state.answered += [(1, 2), (0, 1), (5, 7)]
    return state


@pytest.mark.parametrize(
    "seen",
    [
        lambda state: (state.low, state.finished.spans()),
        lambda state: state.take_delta()[0::2],
        lambda state: state.snapshot()[0::2],
    ],
    ids=["the state", "a delta", "a snapshot"],
)
def test_no_reader_has_to_settle(
    delivery: Delivery, seen: Callable[[Delivery], tuple[int, Collection[Span]]]
) -> None:
    low, spans = seen(delivery)
    assert (low, list(spans)) == (2, [(5, 7)])


def test_settling_is_told_once_and_in_as_few_spans_as_it_is(delivery: Delivery) -> None:
    told: list[list[Span]] = []
    delivery.on_settled = told.append
    assert delivery.low == 2
    delivery.settle()
    assert told == [[(0, 2), (5, 7)]]


def test_what_was_answered_before_a_seek_counts_for_nothing(delivery: Delivery) -> None:
    delivery.seek(4)
    assert (delivery.low, delivery.finished.spans()) == (4, [])
