"""Message frames that are made around a body, where that is."""

import pytest

from pumpline.core.messages.frame import encode_message, frame_in_place


@pytest.mark.parametrize("before", [34, 35, 100])
def test_a_frame_in_place_is_the_frame_and_changes_nothing_else(before: int) -> None:
    buf = bytearray(b"." * before + b"body" + b"after")
    frame = frame_in_place(buf, before, before + 4, timestamp_ns=5, message_id=6)
    assert frame == encode_message(timestamp_ns=5, attempts=1, message_id=6, body=b"body")
    assert buf[: before - 34] == b"." * (before - 34)
    assert buf[before + 4 :] == b"after"


def test_a_frame_needs_room_for_its_head() -> None:
    with pytest.raises(ValueError, match="no room"):
        frame_in_place(bytearray(40), 33, 40, timestamp_ns=5, message_id=6)
