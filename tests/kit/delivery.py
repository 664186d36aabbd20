"""A channel's delivery state, driven one message at a time."""

from pumpline.core.messages.delivery import Delivery


def redeliver(state: Delivery) -> tuple[int, int]:
    """Deliver the first message that came back: its offset, and which attempt that is."""
    offset = state.ready[0]
    assert state.take_ready(offset, offset + 1, 1) == [offset]
    attempts = state.next_attempts([offset])
    state.redelivered([offset], attempts)
    return offset, attempts[0]
