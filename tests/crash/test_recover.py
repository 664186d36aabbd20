"""Bytes of a killed nsqd's files are flipped; nsqd starts; `pumpline recover` brings the rest.

Every message that was acknowledged is compared: it is in the topic once, byte by byte.
"""

import random
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from pumpline.log.missing import token_of
from pumpline.log.salvage import salvage
from tests.crash.conftest import NewNsqd
from tests.kit.crash.damage import batch_starts
from tests.kit.crash.killable_nsqd import KillableNsqd, create_channel, drain_all, mpub_body
from tests.kit.daemons import wait_until
from tests.kit.tools.verbs import Said, in_shell

pytestmark = pytest.mark.slow

TOPICS = [f"t{number}" for number in range(5)]
SEEDS = (1, 2, 3)


def recover(nsqd: KillableNsqd, *flags: str) -> Said:
    where = f"--data-path={nsqd.data_path} --nsqd={nsqd.http_address}"
    return in_shell(" ".join(["pumpline recover", where, *flags]))


def flip(path: Path, position: int, difference: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= difference
    path.write_bytes(data)


def damage_some(path: Path, rng: random.Random) -> int:
    """Flip a byte of some batches, no two of them next to each other; returns of how many."""
    data = path.read_bytes()
    starts = [*batch_starts(data), len(data)] if data else []
    hit, last = 0, -2
    for index, (start, end) in enumerate(pairwise(starts)):
        if index > last + 1 and rng.random() < 0.5:
            flip(path, rng.randrange(start, end), rng.randrange(1, 256))
            hit, last = hit + 1, index
    return hit


def publish(nsqd: KillableNsqd, rng: random.Random, rounds: int) -> dict[str, list[bytes]]:
    sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    with nsqd.connect() as client:
        for number in range(rounds):
            for topic in TOPICS:
                body = b"%s %d " % (topic.encode(), number) + rng.randbytes(rng.randrange(200))
                client.publish(topic, body)
                sent[topic].append(body)
    return sent


def bad_files(nsqd: KillableNsqd) -> list[Path]:
    return sorted(nsqd.data_path.rglob("*.bad"))


def received(nsqd: KillableNsqd) -> dict[str, Counter[bytes]]:
    return {
        topic: Counter(message.body for message in drain_all(nsqd, topic, "c")) for topic in TOPICS
    }


def counted(sent: dict[str, list[bytes]]) -> dict[str, Counter[bytes]]:
    return {topic: Counter(bodies) for topic, bodies in sent.items()}


@pytest.mark.parametrize("where", ["wal", "segments"])
def test_every_message_is_there_once_after_flipped_bytes(
    new_nsqd: NewNsqd, where: str, seed: int
) -> None:
    rng = random.Random(seed)
    nsqd = new_nsqd().start()
    for topic in TOPICS:
        create_channel(nsqd, topic, "c")
    sent = publish(nsqd, rng, 20)
    if where == "segments":
        nsqd.await_flush()
    nsqd.kill()
    paths = nsqd.wal_files() if where == "wal" else [nsqd.segments(topic)[0] for topic in TOPICS]
    hit = sum(damage_some(path, rng) for path in paths)
    assert hit
    nsqd.again()
    if where == "segments":
        nsqd.flush(*TOPICS)
    assert bad_files(nsqd)
    before = {path: path.read_bytes() for path in bad_files(nsqd)}
    shown = recover(nsqd)
    assert shown.code == 0, shown.err
    missing = sum(row["missing"] for row in shown.json())
    assert missing and not any(row["doubtful"] for row in shown.json()), shown
    assert all(row["first_timestamp"] for row in shown.json() if row["missing"])
    done = recover(nsqd, "--publish")
    assert (done.code, sum(row["republished"] for row in done.json())) == (0, missing), done.err
    again = recover(nsqd, "--publish")
    assert (again.code, sum(row["missing"] for row in again.json())) == (0, 0)
    assert received(nsqd) == counted(sent)
    assert {path: path.read_bytes() for path in bad_files(nsqd)} == before
    assert recover(nsqd, "--publish", "--rename").code == 0
    assert not bad_files(nsqd)
    assert recover(nsqd).json() == []


def test_a_command_that_did_not_get_far_is_repeated(new_nsqd: NewNsqd) -> None:
    """nsqd remembers fewer publish tokens than were published; its log has all of them."""
    nsqd = new_nsqd("--max-publish-tokens=3").start()
    create_channel(nsqd, "t0", "c")
    bodies = [b"%d" % number for number in range(40)]
    assert nsqd.http("POST", "/mpub?topic=t0&binary=true", mpub_body(bodies))[0] == 200
    nsqd.await_flush()
    nsqd.kill()
    flip(nsqd.segments("t0")[0], 300, 1)
    nsqd.again()
    (row,) = recover(nsqd).json()
    assert (row["missing"], row["held"]) == (40, 0)
    (bad,) = bad_files(nsqd)
    data = memoryview(bad.read_bytes())
    found = [message for batch in salvage(data) for message in batch.messages()]
    assert [message.body for message in found] == bodies
    for message in found[:25]:  # what a first run did
        token = token_of(message.id, message.timestamp_ns)
        path = f"/pub?topic=t0&token={token}"
        assert nsqd.http("POST", path, message.body)[0] == 200
    nsqd.kill()
    nsqd.again()
    (row,) = recover(nsqd).json()
    assert (row["missing"], row["republished"]) == (15, 25)
    assert recover(nsqd, "--publish").code == 0
    assert Counter(message.body for message in drain_all(nsqd, "t0", "c")) == Counter(bodies)


def test_the_command_is_killed_while_it_publishes(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t0", "c")
    bodies = [b"%d" % number for number in range(2000)]
    assert nsqd.http("POST", "/mpub?topic=t0&binary=true", mpub_body(bodies))[0] == 200
    nsqd.await_flush()
    nsqd.kill()
    flip(nsqd.segments("t0")[0], 300, 1)
    nsqd.again()
    assert recover(nsqd).json()[0]["missing"] == 2000
    command = [sys.executable, "-m", "pumpline", "recover", "--publish"]
    where = [f"--data-path={nsqd.data_path}", f"--nsqd={nsqd.http_address}"]
    with subprocess.Popen([*command, *where]) as running:
        wait_until(lambda: nsqd.stats("t0")["topics"][0]["message_count"] > 100)
        running.kill()
    assert running.returncode == -signal.SIGKILL
    assert 0 < recover(nsqd).json()[0]["missing"] < 1900
    assert recover(nsqd, "--publish").code == 0
    assert Counter(message.body for message in drain_all(nsqd, "t0", "c")) == Counter(bodies)


def test_damage_in_the_same_place_keeps_the_files_of_earlier_damage(new_nsqd: NewNsqd) -> None:
    """The newest batch is damaged, cut off and kept; then the next one in its place."""
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t0", "c")
    bodies = [b"one", b"two", b"three"]
    for body in bodies:
        assert nsqd.http("POST", "/pub?topic=t0", body)[0] == 200
        nsqd.await_flush()
        nsqd.kill()
        path = nsqd.segments("t0")[-1]
        start = batch_starts(path.read_bytes())[-1]
        flip(path, start + 8, 1)
        nsqd.again()
    assert len(bad_files(nsqd)) == 3
    assert recover(nsqd, "--publish").code == 0
    assert sorted(message.body for message in drain_all(nsqd, "t0", "c")) == sorted(bodies)
