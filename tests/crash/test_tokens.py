"""Publishes with tokens, repeated after every crash and failure: each message is there once."""

import json
import random
import time

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    EFBIG_REASON,
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    drain_all,
)
from tests.kit.crash.repeats import Repeater, check_once

SEEDS = (1,)
SOAK_SEEDS = range(100, 120)
KILLS = 6
PUBLISHERS = 3
WRITE_FAILED = {"message": "WRITE_FAILED", "detail": EFBIG_REASON}


def publish(nsqd: KillableNsqd, token: str, body: bytes = b"x") -> tuple[int, bytes]:
    return nsqd.http("POST", f"/pub?topic=t&token={token}", body)


@pytest.mark.slow
def test_kills_while_everything_is_repeated(new_nsqd: NewNsqd, seed: int) -> None:
    kill_again_and_again(new_nsqd, seed)


@pytest.mark.soak
@pytest.mark.parametrize("soak_seed", SOAK_SEEDS)
def test_many_kills_while_everything_is_repeated(new_nsqd: NewNsqd, soak_seed: int) -> None:
    kill_again_and_again(new_nsqd, soak_seed)


def kill_again_and_again(new_nsqd: NewNsqd, seed: int) -> None:
    rng = random.Random(seed)
    # Small segments, often synced: the kills also meet the daemon while it files tokens.
    nsqd = new_nsqd("--max-bytes-per-file=20000", "--sync-every=50").start()
    repeaters = [Repeater(f"p{number}", "t", seed) for number in range(PUBLISHERS)]
    for _ in range(KILLS):
        for repeater in repeaters:
            repeater.start(nsqd)
        time.sleep(rng.uniform(0.02, 0.7))  # the moment of the kill is to be any
        nsqd.kill()
        for repeater in repeaters:
            repeater.join()
        nsqd.again()
    for repeater in repeaters:
        repeater.start(nsqd)
        repeater.stop()
    check_once(nsqd, "t", repeaters)


def test_tokens_are_known_after_their_messages_were_consumed_and_dropped(
    new_nsqd: NewNsqd,
) -> None:
    # Group commit, so that all but the newest are filed when the disk begins to fail.
    nsqd = new_nsqd("--max-bytes-per-file=500", "--sync-every=1").start()
    create_channel(nsqd, "t", "c")
    tokens = [f"token-{number}" for number in range(50)]
    for token in tokens:
        assert publish(nsqd, token)[0] == 200
    drain(nsqd, "t", "c", len(tokens))
    await_checkpoint(nsqd, "t", "c")
    nsqd.await_flush()
    nsqd.drop_history("t")
    assert len(nsqd.segments("t")) == 1
    nsqd.kill()
    nsqd.again()
    for token in tokens:
        assert publish(nsqd, token) == (200, b"OK")
    assert drain_all(nsqd, "t", "c") == []


def test_a_publish_that_failed_is_published_when_it_is_repeated(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    assert publish(nsqd, "before", b"before")[0] == 200
    with nsqd.failing_disk():
        for _ in range(2):
            status, body = publish(nsqd, "a", b"a")
            assert (status, json.loads(body)) == (503, WRITE_FAILED)
        assert publish(nsqd, "before", b"before") == (200, b"OK")
    for _ in range(2):
        assert publish(nsqd, "a", b"a") == (200, b"OK")
    nsqd.kill()
    nsqd.again()
    assert publish(nsqd, "a", b"a") == (200, b"OK")
    assert [message.body for message in drain(nsqd, "t", "c", 2)] == [b"before", b"a"]
