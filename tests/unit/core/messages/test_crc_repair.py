"""One wrong byte is found by the checksum alone; more are never taken for one."""

import random
from zlib import crc32

import pytest

from pumpline.core.messages.crc_repair import (
    BIT_SEARCH_BYTES_MAX,
    BYTE_SEARCH_BYTES_MAX,
    IN_THE_CRC,
    Flip,
    find_flip,
)


@pytest.mark.parametrize("size", [1, 7, 64, 1000, BYTE_SEARCH_BYTES_MAX])
def test_any_wrong_byte_is_found(size: int) -> None:
    rng = random.Random(size)
    data = rng.randbytes(size)
    for position in {0, size // 2, size - 1}:
        flip = Flip(position, rng.randrange(1, 256))
        wrong = bytearray(data)
        wrong[position] ^= flip.difference
        assert find_flip(wrong, crc32(data)) == flip


def test_a_wrong_checksum_is_told_from_wrong_data() -> None:
    data = b"a message" * 20
    found = find_flip(data, crc32(data) ^ 0x00120000)
    assert found is not None
    assert found.position == IN_THE_CRC


def test_in_more_data_only_a_wrong_bit_is_found() -> None:
    data = random.Random(1).randbytes(BYTE_SEARCH_BYTES_MAX + 1)
    for difference, is_found in ((0x10, True), (0x11, False)):
        wrong = bytearray(data)
        wrong[99] ^= difference
        assert (find_flip(wrong, crc32(data)) == Flip(99, difference)) is is_found


def test_too_much_data_is_not_searched() -> None:
    assert find_flip(bytes(BIT_SEARCH_BYTES_MAX + 1), 1) is None


def test_several_wrong_bytes_are_not_taken_for_one() -> None:
    rng = random.Random(2)
    data = rng.randbytes(300)
    for _ in range(300):
        wrong = bytearray(data)
        for position in rng.sample(range(300), 3):
            wrong[position] ^= rng.randrange(1, 256)
        assert find_flip(wrong, crc32(data)) is None
