"""Batches against plain lists of messages, and reading them from bytes that may be anything."""

from zlib import crc32

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pumpline.core.messages.batches import HEADER_BYTES, BadBatch, ShortBatch, read_batch
from pumpline.core.messages.frame import encode_message
from pumpline.core.messages.kernels import redeliveries
from pumpline.core.messages.publish_tokens import split_tokens
from tests.kit.logs import BASE_ID, TIMESTAMP_NS, batch_of, bytes_of

bodies = st.lists(st.binary(max_size=30), min_size=1, max_size=12)
firsts = st.sampled_from([0, 1, (1 << 32) - 3, (1 << 60) + 7])
token_lists = st.lists(st.binary(min_size=16, max_size=16), max_size=3)
due_lists = st.lists(st.sampled_from([0, 1, TIMESTAMP_NS, (1 << 63) - 1]), max_size=12)


def frames_of(first: int, messages: list[bytes], attempts: int = 1) -> list[bytes]:
    return [
        encode_message(
            timestamp_ns=TIMESTAMP_NS, attempts=attempts, message_id=BASE_ID + first + i, body=body
        )
        for i, body in enumerate(messages)
    ]


@given(
    first=firsts,
    messages=bodies,
    dues_ns=due_lists,
    before=st.binary(max_size=9),
    tokens=token_lists,
)
def test_a_batch_is_read_back_as_it_was_sealed(
    first: int, messages: list[bytes], dues_ns: list[int], before: bytes, tokens: list[bytes]
) -> None:
    dues_ns = dues_ns[: len(messages)]
    sealed = batch_of(first, messages, dues_ns=dues_ns, tokens=tokens)
    data = bytes_of(sealed)
    assert len(data) == sealed.size_bytes
    read = read_batch(memoryview(before + data + b"after"), len(before))
    assert (read.first, read.count, read.end) == (first, len(messages), first + len(messages))
    assert read.timestamp_ns == TIMESTAMP_NS
    found_ns = [read.due_ns(offset) for offset in range(first, read.end)]
    assert found_ns == dues_ns + [0] * (len(messages) - len(dues_ns))
    assert len(read.dues) == (8 * len(messages) if any(dues_ns) else 0)
    assert read.size_bytes == len(data)
    assert read.body_bytes == sum(map(len, messages))
    assert bytes(read.frames) == b"".join(frames_of(first, messages))
    assert list(split_tokens(read.tokens)) == tokens
    assert read.head() == sealed.head()


@given(first=firsts, messages=bodies, data=st.data())
def test_slices_are_the_frames_of_their_messages(
    first: int, messages: list[bytes], data: st.DataObject
) -> None:
    batch = batch_of(first, messages)
    frames = frames_of(first, messages)
    start = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(start, len(messages)))
    assert batch.position(first + start) == sum(map(len, frames[:start]))
    assert bytes(batch.cut(first + start, first + end)) == b"".join(frames[start:end])


@given(first=firsts, messages=bodies, data=st.data())
def test_a_run_within_a_budget_is_the_longest_and_never_empty(
    first: int, messages: list[bytes], data: st.DataObject
) -> None:
    batch = batch_of(first, messages)
    frames = frames_of(first, messages)
    sizes = [len(frame) for frame in frames]
    start = data.draw(st.integers(0, len(messages) - 1))
    end = data.draw(st.integers(start + 1, len(messages)))
    budget_bytes = data.draw(st.integers(-50, sum(sizes) + 50) | st.just(sum(sizes[start:end])))
    longest = start + 1
    while longest < end and sum(sizes[start : longest + 1]) <= budget_bytes:
        longest += 1
    begins = batch.position(first + start)
    until, ends_at = batch.fitting(first + start, first + end, begins + budget_bytes)
    assert until == first + longest
    assert bytes(batch.frames[begins:ends_at]) == b"".join(frames[start:longest])


@given(first=firsts, messages=bodies, data=st.data(), attempts=st.integers(1, 70_000))
def test_a_redelivery_is_the_frame_with_other_attempts(
    first: int, messages: list[bytes], data: st.DataObject, attempts: int
) -> None:
    batch = batch_of(first, messages)
    index = data.draw(st.integers(0, len(messages) - 1))
    expected = frames_of(first, messages, attempts & 0xFFFF)[index]
    frames = bytearray(b"others")
    redeliveries([first + index], [attempts], first, batch.ends, batch.frames, frames, 1 << 20)
    assert frames == b"others" + expected
    assert bytes(batch.cut(first + index, first + index + 1)) == frames_of(first, messages)[index]


def test_a_batch_without_tokens_and_due_times_has_no_room_for_any() -> None:
    data = bytes_of(batch_of(3, [b"x"]))
    assert data.hex() == (
        "00000043" "eeca3c5a" "0000000000000003" "17979cfe362a0000" "00000001" "00000000"
        "00000023"
        "0000001f0000000217979cfe362a000000013031323334353630303030303030303378"
    )  # fmt: skip


def test_due_times_come_between_the_ends_and_the_frames() -> None:
    data = bytes_of(batch_of(3, [b"x", b"y"], dues_ns=[0, 258]))
    plain = bytes_of(batch_of(3, [b"x", b"y"]))
    assert data[8:28] == plain[8:28]
    assert data[28:40].hex() == "00000002" "00000023" "00000046"  # fmt: skip
    assert data[40:56].hex() == "0000000000000000" "0000000000000102"  # fmt: skip
    assert data[56:] == plain[40:]


@given(messages=bodies, tokens=token_lists, due_ns=st.sampled_from([0, 7]))
def test_a_batch_that_is_cut_off_says_how_much_it_needs(
    messages: list[bytes], tokens: list[bytes], due_ns: int
) -> None:
    data = bytes_of(batch_of(3, messages, tokens=tokens, due_ns=due_ns))
    for kept_bytes in range(len(data)):
        with pytest.raises(ShortBatch) as caught:
            read_batch(memoryview(data[:kept_bytes]), 0)
        assert caught.value.need_bytes == (HEADER_BYTES if kept_bytes < HEADER_BYTES else len(data))


@given(messages=bodies, tokens=token_lists, dues_ns=due_lists, data=st.data())
def test_a_flipped_bit_is_noticed(
    messages: list[bytes], tokens: list[bytes], dues_ns: list[int], data: st.DataObject
) -> None:
    batch = batch_of(3, messages, tokens=tokens, dues_ns=dues_ns[: len(messages)])
    damaged = bytearray(bytes_of(batch))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadBatch):
        read_batch(memoryview(damaged), 0)


@pytest.mark.parametrize(
    ("flags", "tail", "sound"),
    [
        (0, b"", True),
        (1, bytes(16), True),
        (1, bytes(32), True),
        (0, bytes(16), False),
        (1, b"", False),
        (1, bytes(15), False),
        (2, b"", False),  # no room for due times
        (2, bytes(16), False),
        (3, bytes(16), False),
        (4, b"", False),
        (5, bytes(16), False),
    ],
)
def test_only_flags_that_are_known_and_tokens_that_are_whole_make_a_batch(
    flags: int, tail: bytes, sound: bool
) -> None:
    data = bytearray(bytes_of(batch_of(3, [b"abc"])) + tail)
    data[:4] = (len(data) - 4).to_bytes(4, "big")
    data[28:32] = flags.to_bytes(4, "big")
    data[4:8] = crc32(data[8:]).to_bytes(4, "big")
    if sound:
        assert bytes(read_batch(memoryview(data), 0).tokens) == tail
    else:
        with pytest.raises(BadBatch):
            read_batch(memoryview(data), 0)


@given(
    messages=bodies,
    tokens=token_lists,
    dues_ns=due_lists,
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.floats(0, 1) | st.just(1.0),
    mended=st.booleans(),
)
def test_any_bytes_are_a_batch_or_a_bad_batch(
    messages: list[bytes],
    tokens: list[bytes],
    dues_ns: list[int],
    edits: list[tuple[float, bytes]],
    cut: float,
    mended: bool,
) -> None:
    """Even with a checksum that fits: what is read is at least of one piece."""
    dues_ns = dues_ns[: len(messages)]
    data = bytearray(bytes_of(batch_of(3, messages, tokens=tokens, dues_ns=dues_ns)))
    for where, replacement in edits:
        at = int(where * (len(data) - 1))
        data[at : at + len(replacement)] = replacement
    del data[int(cut * len(data)) :]
    if mended and len(data) >= 8:
        length = int.from_bytes(data[:4], "big")
        data[4:8] = crc32(data[8 : 4 + length]).to_bytes(4, "big")
    try:
        batch = read_batch(memoryview(data), 0)
    except BadBatch:
        return
    assert len(batch.ends) == 4 * batch.count
    assert len(batch.dues) in (0, 8 * batch.count)
    assert batch.position(batch.end) == len(batch.frames)
    assert batch.size_bytes <= len(data)


@given(data=st.binary(max_size=120), at=st.integers(0, 130))
def test_random_bytes_are_no_batch(data: bytes, at: int) -> None:
    with pytest.raises(BadBatch):
        read_batch(memoryview(data), at)
