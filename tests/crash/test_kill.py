"""kill -9 under load, again and again: nothing acknowledged is lost, and little comes twice."""

import random
import time

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import KillableNsqd, create_channel
from tests.kit.crash.ledger import Ledger
from tests.kit.crash.load import Load

SEEDS = (1,)
SOAK_SEEDS = range(100, 120)

TOPICS = ("orders", "events")
CHANNELS = {"orders": ("billing", "stock"), "events": ("archive",)}
BACKLOG_TOPIC = "no-channel-yet"
LATE_CHANNEL = ("events", "late")

# A short run ends while the daemon is still busy with what it found; only a long one leaves
# behind state that is old enough to be beyond doubt (ledger.SETTLED_S).
RUNS_S = ((0.05, 0.6), (2.3, 3.0), (0.05, 0.6), (2.3, 3.0), (0.0, 0.3))
DRAIN_TIMEOUT_S = 120.0


def start_load(nsqd: KillableNsqd, ledger: Ledger, seed: int) -> Load:
    load = Load(nsqd, ledger, seed)
    for topic, channels in CHANNELS.items():
        for channel in channels:
            load.consume(topic, channel)
            load.consume(topic, channel)
    topics = (*TOPICS, BACKLOG_TOPIC)
    load.publish("mpub", topics)
    load.publish("pub", topics)
    load.publish("dpub", topics)
    return load


def kill_under_load(nsqd: KillableNsqd, ledger: Ledger, load: Load, after_s: float) -> None:
    """Lets the load run for a while and kills the daemon in the middle of it."""
    acknowledged = ledger.acknowledged_count
    ledger.await_acknowledged(acknowledged + 1, timeout_s=60)
    time.sleep(after_s)  # the moment of the kill is to be any, so there is no event to wait for
    killed_s = time.time()
    nsqd.kill()
    load.join()
    ledger.killed(killed_s)


@pytest.mark.slow
def test_kills_under_load_lose_nothing_acknowledged(new_nsqd: NewNsqd, seed: int) -> None:
    kill_again_and_again(new_nsqd, seed)


@pytest.mark.soak
@pytest.mark.parametrize("soak_seed", SOAK_SEEDS)
def test_many_kills_under_load_lose_nothing_acknowledged(new_nsqd: NewNsqd, soak_seed: int) -> None:
    kill_again_and_again(new_nsqd, soak_seed)


def kill_again_and_again(new_nsqd: NewNsqd, seed: int) -> None:
    rng = random.Random(seed)
    # Small segments: the kills also meet the daemon while it begins a new file.
    nsqd = new_nsqd("--max-bytes-per-file=200000").start()
    ledger = Ledger()
    for topic, channels in CHANNELS.items():
        for channel in channels:
            create_channel(nsqd, topic, channel)
            ledger.open_books(topic, channel)
    for number, (shortest_s, longest_s) in enumerate(RUNS_S):
        load = start_load(nsqd, ledger, seed)
        if number == 2:
            create_channel(nsqd, *LATE_CHANNEL)
            ledger.open_books(*LATE_CHANNEL)
        kill_under_load(nsqd, ledger, load, rng.uniform(shortest_s, longest_s))
        nsqd.again()

    ledger.open_books(BACKLOG_TOPIC, "first", since_s=0)
    load = Load(nsqd, ledger, seed)
    for topic, channels in CHANNELS.items():
        for channel in channels:
            load.consume(topic, channel, finish_all=True)
    load.consume(*LATE_CHANNEL, finish_all=True)
    load.consume(BACKLOG_TOPIC, "first", finish_all=True)
    ledger.await_nothing_outstanding(DRAIN_TIMEOUT_S)
    load.stop()

    print(ledger.summary())
    assert not ledger.faults, "\n".join(ledger.faults[:50])
    lost = ledger.outstanding()
    assert lost == {}, "\n".join(
        ledger.history(*key, body) for key, bodies in lost.items() for body in bodies[:20]
    )
    assert ledger.redeliveries > 0, "the kills met nothing in flight: the test tested nothing"
