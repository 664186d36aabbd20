"""A text body of /mpub, however large, is split in small pieces with room for others between."""

import asyncio

import pytest

from pumpline.nsqd.http import publish
from pumpline.nsqd.http.publish import sized_lines, whole_lines
from pumpline.web import yielding
from pumpline.web.replies import HttpError

PIECE_BYTES = 100
TEXTS = [
    b"",
    b"one",
    b"\n",
    b"a\n" * 1000,
    b"\n" * 1000 + b"end",
    (b"x" * 99 + b"\n") * 20,
    (b"x" * 100 + b"\n") * 20,  # each longer than a piece
    b"short\n" + b"x" * 5000 + b"\nshort\nlast",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_pieces_are_whole_lines_and_small(text: bytes) -> None:
    pieces = list(whole_lines(bytearray(text), PIECE_BYTES))
    assert b"".join(pieces) == text
    for piece in pieces[:-1]:
        assert piece.endswith(b"\n")
    assert all(len(piece) <= PIECE_BYTES or piece.count(b"\n") <= 1 for piece in pieces)
    long_lines = sum(len(line) >= PIECE_BYTES for line in text.split(b"\n"))
    assert len(pieces) <= 2 * (len(text) // PIECE_BYTES + long_lines) + 1


async def test_others_have_their_turn_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", -1.0)  # every piece takes longer than that
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count_turns())
    text = bytearray(b"x\n" * 500_000)
    count, body = await sized_lines(text, 10)
    other.cancel()
    assert (count, len(body)) == (500_000, 4 + 5 * 500_000)
    assert turns >= len(text) // publish._SPLIT_BYTES


async def test_one_line_too_long_refuses_all() -> None:
    text = bytearray(b"x\n" * 100_000 + b"too long\n")
    with pytest.raises(HttpError, match="MSG_TOO_BIG"):
        await sized_lines(text, 5)
