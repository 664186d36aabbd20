"""A real nsqd on a damaged data directory: it serves, or it says in one line why it does not.

The same damage as in test_data_directory, from outside: exit code, log, and clients over TCP.
"""

import random
from pathlib import Path

import pytest

from tests.fuzz.conftest import Rounds
from tests.fuzz.test_data_directory import damage
from tests.kit.daemons import ErrorFrame, Nsqd, RawClient, wait_until
from tests.kit.fuzz.directories import (
    FLAGS,
    METADATA,
    SENTINEL,
    Template,
    make_template,
    still_owed,
)
from tests.kit.fuzz.watch import Watch

SEEDS = range(1, 7)
READY = 2000
BARRIER_ID = "barrier-barrier-"

pytestmark = pytest.mark.slow


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return make_template(tmp_path / "template", crashed=False)


def drain_over_tcp(nsqd: Nsqd, topic: str, channel: str) -> set[bytes]:
    """What the channel has, finished."""
    bodies = set()
    with nsqd.connect() as client:
        client.sub(topic, channel)
        for path in (f"/topic/unpause?topic={topic}", f"/channel/unpause?topic={topic}"):
            assert nsqd.http("POST", f"{path}&channel={channel}")[0] == 200
        client.publish(topic, SENTINEL)
        client.rdy(READY)
        while SENTINEL not in bodies:
            message = client.read_message()
            bodies.add(message.body)
            client.fin(message.id)
        # Redeliveries that had to be read from disk may come after it.
        wait_until(lambda: nsqd.channel_stats(topic, channel)["depth"] == 0)
        return bodies | until_barrier(client)


def until_barrier(client: RawClient) -> set[bytes]:
    """What comes before nsqd has carried out all that was sent to it so far."""
    bodies = set()
    client.fin(BARRIER_ID)
    while True:
        try:
            bodies.add(client.read_message().body)
        except ErrorFrame as error:
            assert str(error).startswith(f"E_FIN_FAILED FIN {BARRIER_ID} "), error
            return bodies


def test_nsqd_starts_on_a_damaged_directory_or_says_why_not(
    rounds: Rounds, template: Template, tmp_path: Path
) -> None:
    path = tmp_path / "data"

    def play(rng: random.Random) -> None:
        template.copy_to(path)
        damaged = damage(rng, path)
        owed = still_owed(template, path)
        nsqd = Nsqd(path, FLAGS)
        nsqd.log_path.unlink(missing_ok=True)
        try:
            nsqd.start()
        except AssertionError:
            check_refusal(nsqd, damaged)
            return
        with nsqd:
            Watch(nsqd)  # which looks at the log
            for (topic, channel), bodies in owed.items():
                assert bodies <= drain_over_tcp(nsqd, topic, channel), (topic, channel, damaged)
            Watch(nsqd)

    rounds(play)


def check_refusal(nsqd: Nsqd, damaged: set[str]) -> None:
    assert nsqd.process.returncode == 1, nsqd.log_text()
    assert damaged & {METADATA, "format"}, nsqd.log_text()
    assert nsqd.log_text().count(" FATAL: ") == 1
    assert "Traceback" not in nsqd.log_text()
