"""Message ids: a base for each log, and 16 digits on the wire."""

import pytest

from pumpline.core.messages.ids import BASE_SEED_BYTES, new_base, offset_of

SEEDS = [bytes(BASE_SEED_BYTES), b"\x80" + bytes(BASE_SEED_BYTES - 1), b"\xff" * BASE_SEED_BYTES]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_base_and_any_offset_are_an_id_of_16_digits(seed: bytes) -> None:
    base_id = new_base(seed)
    for offset in (0, 1, 4096, (1 << 63) - 1):
        raw = b"%016x" % (base_id + offset)
        assert len(raw) == 16
        assert offset_of(raw, base_id) == offset


def test_a_base_has_63_bits_of_its_seed() -> None:
    assert [new_base(seed) for seed in SEEDS] == [0, 1 << 62, (1 << 63) - 1]


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
