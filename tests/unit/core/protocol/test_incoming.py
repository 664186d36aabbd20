"""Frames out of a stream: whole ones as they come, however it is cut; nothing but frames."""

import random
from struct import pack

import pytest

from pumpline.core.messages.frame import encode_message as encode
from pumpline.core.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, OK, RESPONSE, encode_frame
from pumpline.core.protocol.incoming import Frame, FrameError, Incoming, Message


def message(number: int, body: bytes) -> tuple[bytes, Message]:
    frame = encode(timestamp_ns=number * 10**9, attempts=3, message_id=number, body=body)
    return frame, (number * 10**9, 3, b"%016x" % number, body)


def test_messages_and_other_frames_come_apart() -> None:
    first, second = message(1, b"one"), message(2, b"t" * 1000)
    stream = OK + first[0] + HEARTBEAT + second[0] + encode_frame(ERROR, b"E_INVALID x")
    messages, frames = Incoming().receive(stream)
    assert messages == [first[1], second[1]]
    assert frames == [(RESPONSE, b"OK"), (RESPONSE, b"_heartbeat_"), (ERROR, b"E_INVALID x")]


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_matter_how_the_stream_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    expected: list[Message] = []
    others: list[Frame] = []
    stream = b""
    for number in range(60):
        if chance.random() < 0.3:
            stream += CLOSE_WAIT
            others.append((RESPONSE, b"CLOSE_WAIT"))
        else:
            frame, parts = message(number, chance.randbytes(chance.choice([1, 7, 300, 5000])))
            stream += frame
            expected.append(parts)
    incoming = Incoming()
    messages: list[Message] = []
    frames: list[Frame] = []
    while stream:
        size = chance.choice([1, 3, 40, 4000])
        more, other = incoming.receive(stream[:size])
        messages += more
        frames += other
        stream = stream[size:]
    assert messages == expected
    assert frames == others


@pytest.mark.parametrize(
    "stream",
    [
        pack(">II", 3, 0),
        pack(">II", 6, 3) + b"xx",
        pack(">II", 29, 2) + b"x" * 25,
        pack(">II", 101, 2) + b"x" * 40,
        pack(">II", 0xFFFFFFFF, 0),
    ],
    ids=["too short", "unknown type", "half a message", "over the limit", "huge"],
)
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(FrameError):
        Incoming(frame_bytes_max=100).receive(stream)


def test_a_frame_as_long_as_the_limit_is_taken() -> None:
    frame, parts = message(1, b"b" * 70)
    assert Incoming(frame_bytes_max=100).receive(frame) == ([parts], [])
