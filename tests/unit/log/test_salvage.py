"""Messages are found in damaged bytes; certain ones are right, whatever the damage."""

import random
from collections.abc import Sequence
from struct import pack

import pytest

from pumpline.core.messages.batches import Builder, LogBatch
from pumpline.core.messages.frame import encode_message
from pumpline.log.salvage import SalvagedMessage, salvage

BASE = 1 << 60
NOW_NS = 1_700_000_000_000_000_000


def batch_of(
    first: int, bodies: list[bytes], *, dues_ns: Sequence[int] = (), tokens: int = 0
) -> bytes:
    builder = Builder(first=first, timestamp_ns=NOW_NS)
    for number, body in enumerate(bodies):
        message_id = BASE + first + number
        frame = encode_message(timestamp_ns=NOW_NS, attempts=1, message_id=message_id, body=body)
        builder.add(frame, dues_ns[number] if number < len(dues_ns) else 0)
    builder.tokens = b"t" * 16 * tokens
    batch: LogBatch = builder.seal()
    return b"".join(map(bytes, batch.parts()))


def found_in(data: bytes) -> list[SalvagedMessage]:
    return [message for batch in salvage(memoryview(data)) for message in batch.messages()]


def bodies_in(data: bytes, *, certain: bool) -> list[bytes]:
    return [message.body for message in found_in(data) if message.is_certain == certain]


BODIES = [b"body %d" % number * (number % 5 + 1) for number in range(20)]


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("dues_ns", [[0, 0, 0], [NOW_NS + 5, 0, NOW_NS + 7]])
def test_every_single_wrong_byte_is_repaired(dues_ns: list[int], tokens: int) -> None:
    data = batch_of(7, BODIES[:3], dues_ns=dues_ns, tokens=tokens)
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 0x81
        found = found_in(bytes(wrong))
        assert [message.body for message in found] == BODIES[:3], position
        assert all(message.is_certain for message in found)
        assert [message.due_ns for message in found] == dues_ns
        assert [message.id for message in found] == [BASE + 7, BASE + 8, BASE + 9]


def test_messages_beside_larger_damage_are_doubtful() -> None:
    data = bytearray(batch_of(0, BODIES))
    at = data.index(b"body 9")
    data[at - 10 : at + 20] = bytes(30)  # the id of message 9, too
    assert bodies_in(bytes(data), certain=True) == []
    assert bodies_in(bytes(data), certain=False) == BODIES[:9] + BODIES[10:]


def test_a_damaged_table_costs_no_message() -> None:
    data = bytearray(batch_of(0, BODIES))
    data[32 + 4 * 5 : 32 + 4 * 8] = b"\xff" * 12
    assert bodies_in(bytes(data), certain=False) == BODIES


def test_doubtful_messages_keep_their_due_times_where_the_table_has_them() -> None:
    dues_ns = [NOW_NS + number if number % 2 else 0 for number in range(len(BODIES))]
    data = bytearray(batch_of(0, BODIES, dues_ns=dues_ns))
    at = data.index(b"body 9")
    data[at - 10 : at + 20] = bytes(30)  # the id of message 9, too
    found = found_in(bytes(data))
    assert [message.body for message in found] == BODIES[:9] + BODIES[10:]
    assert [message.due_ns for message in found] == dues_ns[:9] + dues_ns[10:]


def test_several_batches_of_which_one_is_beyond_repair() -> None:
    data = bytearray(
        batch_of(0, BODIES[:5]) + batch_of(5, BODIES[5:10]) + batch_of(10, BODIES[10:])
    )
    at = data.index(b"body 7")
    data[at : at + 3] = b"XXX"
    assert bodies_in(bytes(data), certain=True) == BODIES[:5] + BODIES[10:]
    doubtful = bodies_in(bytes(data), certain=False)
    assert [body for body in doubtful if b"XXX" not in body] == [
        body for number, body in enumerate(BODIES) if number in (5, 6, 8, 9)
    ]


def test_a_body_that_looks_like_a_message_is_a_body() -> None:
    inner = encode_message(timestamp_ns=1, attempts=1, message_id=5, body=b"inner")
    data = bytearray(batch_of(0, [b"a", inner, b"z"]))
    data[78] ^= 1  # the body a
    data[-1] ^= 1
    assert [message.id for message in found_in(bytes(data))] == [BASE, BASE + 1, BASE + 2]


@pytest.mark.parametrize("seed", range(30))
def test_certain_messages_are_right_whatever_the_damage(seed: int) -> None:
    rng = random.Random(seed)
    parts = [batch_of(4 * number, BODIES[4 * number : 4 * number + 4]) for number in range(5)]
    data = bytearray(b"".join(parts))
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[at] ^= rng.randrange(1, 256)
        elif kind == 1:
            data[at : at + rng.randrange(64)] = b""
        else:
            size = rng.randrange(64)
            data[at : at + size] = rng.randbytes(size)
    for message in found_in(bytes(data)):
        if message.is_certain:
            assert message.body == BODIES[message.id - BASE]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        bytes(31),
        bytes(100_000),
        b"\xff" * 100_000,
        random.Random(1).randbytes(100_000),
        pack(">IIQqII", 0xFFFFFFFF, 0, 0, 0, 0xFFFFFFFF, 0) * 2000,
        pack(">IIQqII", 28, 0, 0, 0, 1, 0) * 2000,
        (b"\xff\xff\xff\xff\0\0\0\2" + bytes(8) + b"\0\1" + b"0" * 16) * 3000,
        (b"\0\0\0\x1e\0\0\0\2" + bytes(8) + b"\0\1" + b"0" * 16 + b"!") * 3000,
    ],
    ids=["empty", "a byte", "short", "zeros", "ones", "random", "huge", "tiny", "long", "gaps"],
)
def test_hostile_bytes_end(data: bytes) -> None:
    assert bodies_in(data, certain=True) == []
    assert len(found_in(data)) <= len(data) // 34


def test_frames_without_a_batch_are_found() -> None:
    frame = encode_message(timestamp_ns=1, attempts=1, message_id=5, body=b"x" * 50)
    assert bodies_in(b"junk" + frame * 3, certain=False) == [b"x" * 50] * 3
