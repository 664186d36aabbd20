"""A stream of commands means the same however it is cut: whole, in pieces, byte by byte.

Compared are the replies, byte for byte, and what the broker has afterwards. Messages are not: which
of them are delivered before the stream ends is a matter of time.
"""

import random
from pathlib import Path

import pytest

from pumpline.nsqd.broker import Broker
from tests.fuzz.conftest import Rounds
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.fuzz import replies
from tests.kit.fuzz.grammar import LIMIT_FLAGS, stream
from tests.kit.fuzz.hostile import Ending, converse
from tests.kit.fuzz.inprocess import InProcess, Wire
from tests.kit.fuzz.mutation import pieces
from tests.kit.fuzz.watch import Watch, delete_topics, topics

SEEDS = range(1, 61)
STREAM_BYTES_MAX = 3000  # what is sent byte by byte

Topics = dict[str, tuple[int, int, list[str]]]  # messages, their bytes, channels


def cuts(rng: random.Random, data: bytes) -> list[list[bytes]]:
    ways = [[data], pieces(rng, data), pieces(rng, data, 40)]
    if len(data) <= STREAM_BYTES_MAX:
        ways.append([data[at : at + 1] for at in range(len(data))])
    return ways


async def outcome(broker: Broker, parts: list[bytes]) -> tuple[list[replies.Frame], Topics]:
    """The replies to one stream, and what became of it; leaves nothing behind."""
    wire = Wire(broker)
    await wire.send(parts)
    await wire.end()
    frames, rest = replies.whole_frames(bytes(wire.received))
    assert not rest
    replies.check(frames)
    left = {
        topic.name: (topic.message_count, topic.log.message_bytes, sorted(topic.channels))
        for topic in broker.topics.values()
    }
    for name in left:
        broker.topics.delete(name)
    return replies.answers(frames), left


def test_replies_do_not_depend_on_how_a_stream_is_cut(rounds: Rounds, tmp_path: Path) -> None:
    with InProcess(tmp_path, LIMIT_FLAGS) as nsqd:

        def play(rng: random.Random) -> None:
            data = stream(rng)
            ways = cuts(rng, data)
            expected = nsqd.run(outcome(nsqd.broker, ways[0]))
            for parts in ways[1:]:
                assert nsqd.run(outcome(nsqd.broker, parts)) == expected, data

        rounds(play)


def outcome_over_tcp(
    nsqd: Nsqd, watch: Watch, parts: list[bytes]
) -> tuple[list[replies.Frame], Topics]:
    received, _ = converse(nsqd.tcp_port, parts, Ending.HALF_CLOSE)
    frames, _ = replies.whole_frames(received)
    replies.check(frames)
    wait_until(watch.is_calm)  # the broker has noticed that the client is gone
    left = {
        name: (
            topic["message_count"],
            topic["message_bytes"],
            sorted(channel["channel_name"] for channel in topic["channels"]),
        )
        for name, topic in topics(nsqd).items()
    }
    delete_topics(nsqd)
    return replies.answers(frames), left


@pytest.mark.slow
def test_replies_do_not_depend_on_packets(rounds: Rounds, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", LIMIT_FLAGS) as nsqd:
        watch = Watch(nsqd)

        def play(rng: random.Random) -> None:
            data = stream(rng)
            while len(data) > STREAM_BYTES_MAX:
                data = stream(rng)
            whole = outcome_over_tcp(nsqd, watch, [data])
            by_byte = outcome_over_tcp(nsqd, watch, [data[at : at + 1] for at in range(len(data))])
            assert by_byte == whole, data
            watch.check()

        rounds(play)
