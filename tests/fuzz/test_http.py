"""The HTTP port under random and mutated requests, from many connections at once.

The process lives, its log has no traceback, every answer has a status that is documented, a
bystander that publishes over HTTP loses nothing, and memory and sockets come back.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.conftest import Rounds
from tests.kit.daemons import Nsqd
from tests.kit.fuzz import bystander
from tests.kit.fuzz.grammar import LIMIT_FLAGS
from tests.kit.fuzz.hostile import Ending, converse
from tests.kit.fuzz.mutation import pieces
from tests.kit.fuzz.requests import requests
from tests.kit.fuzz.swarm import swarm

SEEDS = (1, 2)
CONNECTIONS = 150  # a round
AT_ONCE = 12
STATUSES = {100, 200, 301, 307, 400, 401, 403, 404, 405, 409, 410, 413, 416, 417}
STATUSES |= {431, 500, 501, 503, 505}
TOKEN = "0123456789abcdef"
ENDINGS = (*[Ending.LINGER] * 6, Ending.HALF_CLOSE, Ending.CLOSE, Ending.RESET)

# A request in HTTP/1.0 is answered in it.
_STATUS_LINE = re.compile(rb"HTTP/\d\.\d (\d{3}) [ -~]*\r\n")
_OWN_TROUBLE = b"Server got itself in trouble"

pytestmark = pytest.mark.slow


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "data", LIMIT_FLAGS) as daemon:
        yield daemon


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Nsqd]:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    with Nsqd(tmp_path / "data", [*LIMIT_FLAGS, f"--http-token-file={tokens}"]) as daemon:
        yield daemon


def attack(nsqd: Nsqd, seed: int) -> None:
    """One connection."""
    rng = random.Random(seed)
    data = requests(rng)
    try:
        received, _ = converse(
            nsqd.http_port, pieces(rng, data), rng.choice(ENDINGS), deaf=rng.random() < 0.1
        )
        check_answers(received)
    except AssertionError as error:
        error.add_note(f"connection {seed} sent {data!r}"[:3000])
        raise


def check_answers(received: bytes) -> None:
    if received:
        assert _STATUS_LINE.match(received), received[:200]
    for status in _STATUS_LINE.findall(received):
        assert int(status) in STATUSES, received[:200]
    assert _OWN_TROUBLE not in received


def publish_to(nsqd: Nsqd) -> bystander.Publish:
    """Over HTTP, with a look at the figures every time."""

    def publish(bodies: list[bytes]) -> None:
        for body in bodies[:-2]:
            assert nsqd.http("POST", f"/pub?topic={bystander.TOPIC}", body) == (200, b"OK")
        lines = b"\n".join(bodies[-2:])
        assert nsqd.http("POST", f"/mpub?topic={bystander.TOPIC}", lines) == (200, b"OK")
        assert nsqd.http("GET", "/ping") == (200, b"OK")
        assert nsqd.stats()["health"] == "OK"

    return publish


def test_hostile_requests_harm_nobody(rounds: Rounds, nsqd: Nsqd) -> None:
    publish = publish_to(nsqd)
    swarm(rounds, nsqd, attack, connections=CONNECTIONS, at_once=AT_ONCE, publish=publish)


def test_hostile_requests_without_a_token_change_nothing(rounds: Rounds, guarded: Nsqd) -> None:
    def nothing_changed() -> None:
        assert [topic["topic_name"] for topic in guarded.stats()["topics"]] == [bystander.TOPIC]

    swarm(
        rounds,
        guarded,
        attack,
        connections=CONNECTIONS,
        at_once=AT_ONCE,
        after_each=nothing_changed,
    )
