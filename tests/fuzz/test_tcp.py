"""The TCP port under random and mutated bytes, from many connections at once.

The process lives, its log has no traceback, every connection gets documented frames or a close,
a bystander loses nothing, and memory and sockets come back.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.conftest import Rounds
from tests.kit.daemons import Nsqd
from tests.kit.fuzz import replies
from tests.kit.fuzz.grammar import LIMIT_FLAGS, fin, req, stream, touch
from tests.kit.fuzz.hostile import Ending, converse
from tests.kit.fuzz.mutation import mutated, pieces
from tests.kit.fuzz.swarm import swarm

SEEDS = (1, 2)
CONNECTIONS = 400  # a round
AT_ONCE = 12

pytestmark = pytest.mark.slow


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "data", LIMIT_FLAGS) as daemon:
        yield daemon


def attack(nsqd: Nsqd, seed: int) -> None:
    """One connection."""
    rng = random.Random(seed)
    ending = rng.choice((Ending.HALF_CLOSE, Ending.HALF_CLOSE, Ending.CLOSE, Ending.RESET))
    data = stream(rng)
    try:
        received, in_order = converse(
            nsqd.tcp_port,
            pieces(rng, data),
            ending,
            deaf=rng.random() < 0.1,
            answer=(lambda came: answer(rng, came)) if rng.random() < 0.5 else None,
        )
        frames, rest = replies.whole_frames(received)
        replies.check(frames)
        assert not (in_order and rest), rest
    except AssertionError as error:
        error.add_note(f"connection {seed} sent {data!r}"[:3000])
        raise


def answer(rng: random.Random, came: bytes) -> bytes:
    """To messages that came: finished, requeued and touched, some of it wrongly."""
    frames, _ = replies.whole_frames(came)
    commands = []
    for frame in frames:
        if frame.type == replies.MESSAGE:
            line = rng.choice((fin, fin, req, touch))(rng)
            verb, _, rest = line.partition(b" ")
            commands.append(b" ".join([verb, frame.message_id, *rest.split(b" ")[1:]]))
            if not commands[-1].endswith(b"\n"):
                commands[-1] += b"\n"
    data = b"".join(commands * rng.choice((1, 1, 2)))
    return mutated(rng, data) if data and rng.random() < 0.3 else data


def test_hostile_connections_harm_nobody(rounds: Rounds, nsqd: Nsqd) -> None:
    swarm(rounds, nsqd, attack, connections=CONNECTIONS, at_once=AT_ONCE)
