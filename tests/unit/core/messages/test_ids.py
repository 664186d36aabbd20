"""Message ids: a base for each log, and 16 digits on the wire."""

import pytest

from pumpline.core.messages.ids import new_base, offset_of

NS_PER_MS = 1_000_000
EPOCH_2020_NS = 1_577_836_800_000 * NS_PER_MS
LAST_MS = (1 << 42) - 1


def test_a_base_is_the_node_and_the_time_since_2020() -> None:
    assert new_base(0, EPOCH_2020_NS) == 0
    assert new_base(1, EPOCH_2020_NS) == 1 << 54
    assert new_base(5, EPOCH_2020_NS + 3 * NS_PER_MS) == (5 << 54) + (3 << 12)


def test_a_clock_before_2020_or_far_ahead_stays_in_its_bits() -> None:
    assert new_base(7, 0) == 7 << 54
    assert new_base(1023, EPOCH_2020_NS + LAST_MS * NS_PER_MS) < 1 << 64
    assert new_base(1023, EPOCH_2020_NS + (LAST_MS + 1) * NS_PER_MS) >> 54 == 1023


def test_logs_made_a_millisecond_apart_are_4096_ids_apart() -> None:
    assert new_base(3, EPOCH_2020_NS + NS_PER_MS) - new_base(3, EPOCH_2020_NS) == 4096


def test_an_offset_is_found_behind_its_id() -> None:
    base_id = new_base(1023, EPOCH_2020_NS + 10**18)
    for offset in (0, 1, 4096, 10**9):
        assert offset_of(b"%016x" % (base_id + offset), base_id) == offset


@pytest.mark.parametrize(
    "raw",
    [
        b"000000000000000A",
        b"000000000000000g",
        b"0x00000000000001",
        b"+000000000000001",
        b"0_00000000000001",
        b" 00000000000000 ",
        b"\xff" * 16,
    ],
)
def test_what_is_no_id_has_no_offset(raw: bytes) -> None:
    assert offset_of(raw, 0) == -1


def test_an_id_below_the_base_has_no_offset_of_this_log() -> None:
    assert offset_of(b"%016x" % 4, 5) < 0
