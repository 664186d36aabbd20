"""Finds the one wrong byte of data whose crc32 does not match.

crc32 is linear: the difference between the right and the wrong sum (the *syndrome*) depends only on
which bits differ. One wrong byte at a distance of d bytes from the end leaves the table entry of
its difference, moved on by d zero bytes. So the syndrome is moved back byte by byte, and compared
with the 255 table entries.

Damage of several bytes has a random syndrome, which fits some single byte of n with a probability
of 255 n / 2^32, and some single bit with 8 n / 2^32. Data is only searched where that is below
1/1000: single bytes in up to 16 KiB, single bits in up to 512 KiB.
"""

from typing import NamedTuple

from pumpline.core.messages.crc import crc32

BYTE_SEARCH_BYTES_MAX = 16 << 10
BIT_SEARCH_BYTES_MAX = 512 << 10
IN_THE_CRC = -1  # in the place of a position

_POLYNOMIAL = 0xEDB88320
_MASK = 0xFFFFFFFF


class Flip(NamedTuple):
    """A byte that is wrong: xor it with `difference`."""

    position: int  # IN_THE_CRC: the data is right
    difference: int


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
_BYTE_OF_ENTRY = {entry: byte for byte, entry in enumerate(_TABLE) if byte}
_BYTE_OF_TOP = {entry >> 24: byte for byte, entry in enumerate(_TABLE)}


def find_flip(data: bytes | memoryview, crc: int) -> Flip | None:
    """The only single byte whose repair makes `crc` the crc32 of `data`, which it is not; None if
    there is none, or several, or too much data to be sure."""
    size = len(data)
    if size > BIT_SEARCH_BYTES_MAX:
        return None
    syndrome = crc32(data) ^ crc
    in_crc = [syndrome >> shift for shift in (0, 8, 16, 24) if not syndrome & ~(0xFF << shift)]
    found = [Flip(IN_THE_CRC, difference) for difference in in_crc]
    find, tops, table = _BYTE_OF_ENTRY.get, _BYTE_OF_TOP, _TABLE
    for position in range(size - 1, -1, -1):
        difference = find(syndrome)
        if difference is not None:
            found.append(Flip(position, difference))
        byte = tops[syndrome >> 24]
        syndrome = (syndrome ^ table[byte]) << 8 & _MASK | byte
    if size > BYTE_SEARCH_BYTES_MAX:
        found = [flip for flip in found if not flip.difference & (flip.difference - 1)]
    return found[0] if len(found) == 1 else None
