"""Auth servers that answer nonsense: clients are refused or let in, and never left waiting."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.conftest import Rounds
from tests.fuzz.test_texts import damaged_grant, text_of
from tests.kit.auth_server import EVERYTHING, Answer, Asked, AuthorityServer
from tests.kit.daemons import Nsqd
from tests.kit.fuzz import replies
from tests.kit.fuzz.grammar import LIMIT_FLAGS, MAGIC, auth, pub, sized
from tests.kit.fuzz.hostile import Ending, converse
from tests.kit.fuzz.mutation import pieces
from tests.kit.fuzz.watch import Watch, delete_topics

SEEDS = (1, 2)
CONNECTIONS = 100  # a round
AT_ONCE = 8
STATUSES = (200, 200, 200, 200, 204, 301, 400, 403, 404, 500)

pytestmark = pytest.mark.slow


def nonsense(asked: Asked) -> Answer:
    """The secret is the seed of the answer."""
    rng = random.Random(asked.target)
    if rng.random() < 0.3:
        grant = {"ttl": rng.choice((0, 1, 60)), "authorizations": [EVERYTHING]}
        return Answer(200, json.dumps(grant).encode())
    return Answer(rng.choice(STATUSES), text_of(rng, damaged_grant(rng)))


def attack(nsqd: Nsqd, seed: int) -> None:
    """One connection."""
    rng = random.Random(seed)
    commands = [auth(rng), *(pub(rng) for _ in range(rng.randint(0, 3)))]
    if rng.random() < 0.3:
        commands.insert(0, b"AUTH\n" + sized(rng.randbytes(rng.randint(0, 50_000))))
    rng.shuffle(commands)
    data = MAGIC + b"".join(commands)
    try:
        received, in_order = converse(nsqd.tcp_port, pieces(rng, data), Ending.HALF_CLOSE)
        frames, rest = replies.whole_frames(received)
        assert not (in_order and rest), rest
        replies.check([frame for frame in frames if b'"permission_count"' not in frame.data])
    except AssertionError as error:
        error.add_note(f"connection {seed} sent {data!r}"[:3000])
        raise


def test_nonsense_from_auth_servers_harms_nobody(rounds: Rounds, tmp_path: Path) -> None:
    with AuthorityServer(nonsense) as authority:
        flags = [*LIMIT_FLAGS, f"--auth-http-address={authority.address}"]
        with Nsqd(tmp_path / "data", flags) as nsqd:
            watch = Watch(nsqd)
            attack(nsqd, 0)
            # A connection to the auth server is kept, and counts as a socket.
            sockets = AT_ONCE

            def play(rng: random.Random) -> None:
                seeds = [rng.getrandbits(64) for _ in range(CONNECTIONS)]
                with ThreadPoolExecutor(AT_ONCE) as threads:
                    for _ in threads.map(lambda seed: attack(nsqd, seed), seeds):
                        pass
                delete_topics(nsqd)
                watch.check(more_sockets=sockets)

            rounds(play)
