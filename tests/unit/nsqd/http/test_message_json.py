"""Messages as JSON in pieces: together they are what msgspec makes of them whole, and any of them
may be the first after a pause."""

import base64
import json
from typing import Any

import pytest

from pumpline.log.messages import LoggedMessage
from pumpline.nsqd.http.message_json import PIECE_BYTES, MessagePieces, MessageState

TEXT = ('žluť 🐝\0"\\/\x1f' * 10_000).encode()
BODIES = [
    b"",
    b"x",
    b"\xff",
    TEXT,
    b"x" + TEXT,
    TEXT[: PIECE_BYTES + 1].decode("utf-8", "ignore").encode(),
    b"\xff" + TEXT,
    TEXT + b"\xc5",
    bytes(range(1, 32)) * 5000,
    b"a" * PIECE_BYTES,
    b"a" * (2 * PIECE_BYTES),
    b"\xfe" * PIECE_BYTES,
    *[b"small %d" % number for number in range(1000)],
]
MESSAGES = [
    LoggedMessage(offset=10 + number, id=f"{number:016x}", timestamp_ns=5, due_ns=0, body=body)
    for number, body in enumerate(BODIES)
]
STATES = {11: MessageState("deferred", 3, 77)}


def encoder(messages: list[LoggedMessage], body_max: int, body_at: int = 0) -> MessagePieces:
    return MessagePieces(
        messages,
        states=STATES,
        body_max=body_max,
        opening=lambda message: b"" if message.offset == 10 else b",",
        body_at=body_at,
    )


def expected(message: LoggedMessage, body_max: int) -> dict[str, Any]:
    body = message.body
    entry: dict[str, Any] = {
        "offset": message.offset,
        "id": message.id,
        "timestamp": 5,
        "attempts": 1,
        "bytes": len(body),
    }
    if message.offset == 11:
        entry |= {"attempts": 3, "state": "deferred", "deferred_until": 77}
    try:
        body.decode()
        entry["body"] = body[:body_max].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        entry["body_base64"] = base64.b64encode(body[:body_max]).decode()
    if len(body) > body_max:
        entry["truncated"] = True
    return entry


@pytest.mark.parametrize("body_max", [0, 1, 2, 3, PIECE_BYTES - 1, PIECE_BYTES, 50_001, 1 << 30])
def test_pieces_are_small_and_together_the_whole(body_max: int) -> None:
    pieces = encoder(MESSAGES, body_max)
    made = list(iter(pieces.next, b""))
    assert pieces.is_over
    assert json.loads(b"[" + b"".join(made) + b"]") == [expected(m, body_max) for m in MESSAGES]
    assert max(map(len, made)) < 13 * PIECE_BYTES
    if body_max > PIECE_BYTES:
        assert len(made) > 20


@pytest.mark.parametrize("body_max", [50_001, 1 << 30])
def test_messages_may_be_dropped_after_every_piece(body_max: int) -> None:
    made = []
    rest, body_at = MESSAGES, 0
    while rest:
        pieces = encoder(rest, body_max, body_at)
        made.append(pieces.next())
        sent, body_at = pieces.place
        rest = rest[sent:]
    assert made == list(iter(encoder(MESSAGES, body_max).next, b""))
