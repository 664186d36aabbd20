"""Bodies, where they are received: sized ones in buffers that are lent, chunked ones decoded."""

import random

import pytest

from pumpline.web import bodies
from pumpline.web.bodies import BodyBuffers, ChunkedBody, SizedBody

NEXT = b"GET / HTTP/1.1\r\n\r\n"


def test_buffers_are_lent_again_and_never_beyond_their_limits() -> None:
    buffers = BodyBuffers()
    first = buffers.lend(1_000_000)
    assert first is not None and len(first) >= 1_000_000
    buffers.give_back(first)
    assert buffers.lend(900_000) is first
    assert buffers.lend(bodies.LEND_BYTES_MAX + 1) is None
    lent = [first]
    while (buffer := buffers.lend(1_000_000)) is not None:
        lent.append(buffer)
    assert len({id(buffer) for buffer in lent}) == bodies.LENT_BYTES_MAX // len(first)
    for buffer in lent:
        buffers.give_back(buffer)
    again = buffers.lend(1_000_000)
    assert any(again is buffer for buffer in lent)


def test_buffers_that_nobody_uses_are_forgotten() -> None:
    buffers = BodyBuffers()
    first = buffers.lend(1000)
    assert first is not None
    buffers.give_back(first)
    buffers.forget()
    assert buffers.lend(1000) is not first


@pytest.mark.parametrize("size_bytes", [1, 1000, bodies.SMALL_BYTES, 300_000, 5_000_000])
@pytest.mark.parametrize("lends", [True, False])
def test_a_body_is_whole_however_it_comes(
    size_bytes: int, lends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not lends:
        monkeypatch.setattr(bodies, "LENT_BYTES_MAX", 0)
    draw = random.Random(size_bytes)
    sent = draw.randbytes(size_bytes)
    body = SizedBody(BodyBuffers(), size_bytes)
    at = draw.randint(0, size_bytes - 1)
    body.fill(memoryview(sent)[:at])
    while not body.is_whole:
        free = body.free
        count = min(len(free), draw.randint(1, 100_000))
        free[:count] = sent[at : at + count]
        body.filled(count)
        at += count
    assert body.buffer[:size_bytes] == sent


def test_a_length_that_is_only_announced_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LENT_BYTES_MAX", 0)
    body = SizedBody(BodyBuffers(), 1 << 30)
    assert len(body.buffer) == bodies.SMALL_BYTES
    body.fill(memoryview(bytes(bodies.SMALL_BYTES)))
    assert len(body.buffer) <= 2 * bodies.SMALL_BYTES


def test_what_was_lent_is_given_back_once() -> None:
    buffers = BodyBuffers()
    body = SizedBody(buffers, 1_000_000)
    body.release()
    body.release()
    assert buffers.lend(1_000_000) is body.buffer
    assert buffers.lend(1_000_000) is not body.buffer


CHUNKED = {
    b"0\r\n\r\n": b"",
    b"4\r\nfour\r\n0\r\n\r\n": b"four",
    b"4;name=value\r\nfour\r\n3;x\r\nend\r\n0;last\r\n\r\n": b"fourend",
    b"1\r\nx\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\n": b"x",
    b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n": b"\r\n\r\n\r\n\r\n",
    b"A\r\n0\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n": b"0\r\n\r\n0\r\n\r\n",
    b"0000ff\r\n" + b"z" * 255 + b"\r\n0\r\n\r\n": b"z" * 255,
}


@pytest.mark.parametrize("raw", CHUNKED, ids=range(len(CHUNKED)))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 1000])
def test_chunks_are_joined_and_what_follows_is_not_touched(raw: bytes, size: int) -> None:
    body = ChunkedBody(1000)
    data = raw + NEXT
    used = at = 0
    while not body.is_whole:
        used = at + body.feed(data[at : at + size])
        at += size
    assert body.buffer == CHUNKED[raw]
    assert data[used:] == NEXT


@pytest.mark.parametrize("bad", [b"x\r\n", b"-1\r\n", b"4\r\nfour, or more\r\n", b"4\nfour\n0\n\n"])
@pytest.mark.parametrize("size", [1, 1000])
def test_malformed_chunks_are_found_out(bad: bytes, size: int) -> None:
    body = ChunkedBody(1000)
    with pytest.raises(ValueError):
        for at in range(0, len(bad), size):
            body.feed(bad[at : at + size])


def test_chunks_without_an_end_are_given_up_at_the_limit() -> None:
    body = ChunkedBody(1000)
    for _ in range(1001):
        assert not body.is_too_long
        body.feed(b"1\r\nx\r\n")
    assert body.is_too_long
    assert body.feed(b"1\r\nx\r\n") == 0


@pytest.mark.parametrize("body", [b"\r\n\r\n" * 5000, b"x" * 20_000], ids=["lines", "bytes"])
def test_many_small_pieces_are_read_in_turns(body: bytes) -> None:
    """Turns are counted by pieces: a body in chunks of a byte is as much work as a large one."""
    size = 1 if body.startswith(b"x") else len(body)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    raw = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    read = ChunkedBody(100_000)
    at = turns = 0
    data = raw + NEXT
    while not read.is_whole:
        at += read.feed(data[at:])
        turns += 1
    assert (read.buffer, data[at:]) == (body, NEXT)
    assert turns >= 4
