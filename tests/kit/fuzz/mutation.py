"""Damage to bytes: what a bad client, disk or cable may do to something that was valid.

Knows nothing of formats. Everything random comes from the generator that is passed in.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

# Sizes, counts and offsets at which code that reads them tends to break.
NUMBERS = (
    0,
    1,
    -1,
    2,
    4,
    5,
    26,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    1 << 20,
    (1 << 20) + 1,
    (1 << 31) - 1,
    -(1 << 31),
    (1 << 32) - 1,
)

Mutation = Callable[[random.Random, bytearray], None]


def mutated(rng: random.Random, data: bytes, *, times_max: int = 4) -> bytes:
    """`data` with 1 to `times_max` mutations; few more often than many."""
    result = bytearray(data)
    for _ in range(min(rng.randint(1, times_max), rng.randint(1, times_max))):
        rng.choice(MUTATIONS)(rng, result)
    return bytes(result)


def spliced(rng: random.Random, first: bytes, second: bytes) -> bytes:
    """The beginning of one and the end of the other."""
    return first[: rng.randint(0, len(first))] + second[rng.randint(0, len(second)) :]


def pieces(rng: random.Random, data: bytes, count_max: int = 12) -> list[bytes]:
    """`data` cut at random places."""
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, count_max - 1)))
    bounds = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]


def flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def replace_bytes(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[start:end] = rng.randbytes(end - start)


def zero_bytes(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[start:end] = bytes(end - start)


def cut_end(rng: random.Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


def cut_out(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    del data[start:end]


def duplicate(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[end:end] = data[start:end]


def insert_bytes(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 3, 4, 16, 100)))


def write_number(rng: random.Random, data: bytearray) -> None:
    """A number of two, four or eight bytes over what is there."""
    width = rng.choice((2, 4, 4, 4, 8))
    at = rng.randint(0, len(data))
    number = rng.choice(NUMBERS) % (1 << 8 * width)
    data[at : at + width] = number.to_bytes(width)


MUTATIONS: Sequence[Mutation] = (
    flip_bits,
    flip_bits,
    replace_bytes,
    zero_bytes,
    cut_end,
    cut_out,
    duplicate,
    insert_bytes,
    write_number,
    write_number,
)


def _span(rng: random.Random, data: bytearray) -> tuple[int, int]:
    """A stretch of `data`, mostly short."""
    start = rng.randint(0, len(data))
    length = rng.choice((1, 2, 4, 16, 64, 1024, len(data)))
    return start, min(start + rng.randint(1, max(length, 1)), len(data))
