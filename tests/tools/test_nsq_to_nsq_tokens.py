"""nsq_to_nsq --tokens: whoever is killed, each message is in the destination's log once.

This is how Spark reads a stock nsqd exactly once: a pumpline nsqd beside it, fed by this tool.
PUMPLINE_TEST_SOURCE_NSQD=/path/to/nsqd takes the messages from another nsqd. That one is stopped
instead of killed, since a killed Go nsqd loses what is in its memory.
"""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool, last_line, run_tool

SEED = int(os.environ.get("PUMPLINE_CRASH_SEED", "18"))
SOURCE_VARIABLE = "PUMPLINE_TEST_SOURCE_NSQD"
MPUB_MESSAGES = 1000

pytestmark = [pytest.mark.crash, pytest.mark.slow]


class SourceNsqd(Nsqd):
    command_variable = SOURCE_VARIABLE


def bodies_in_log(nsqd: Nsqd, topic: str) -> list[str]:
    bodies: list[str] = []
    at = 0
    while True:
        status, answer = nsqd.http("GET", f"/log/peek?topic={topic}&from={at}&limit=1000")
        assert status == 200, answer
        page = json.loads(answer)
        bodies += [message["body"] for message in page["messages"]]
        if page["next"] == at or page["next"] >= page["end"]:
            return bodies
        at = page["next"]


def end_of_log(nsqd: Nsqd, topic: str) -> int:
    status, answer = nsqd.http("GET", f"/log/offsets?topic={topic}")
    return int(json.loads(answer)["end"]) if status == 200 else 0


@pytest.mark.parametrize(
    ("messages", "rounds"),
    [(6_000, 4), pytest.param(200_000, 30, marks=pytest.mark.soak)],
)
def test_each_message_is_there_once_whoever_is_killed(
    tmp_path: Path, messages: int, rounds: int
) -> None:
    chance = random.Random(SEED)
    source = SourceNsqd(tmp_path / "source", ["--msg-timeout=2s", "--mem-queue-size=0"])
    destination = Nsqd(tmp_path / "destination", ["--max-publish-tokens=1000000"])
    with source, destination:
        source.http("POST", "/topic/create?topic=t")
        source.http("POST", "/channel/create?topic=t&channel=nsq_to_nsq")
        expected = [f"message {number}" for number in range(messages)]
        with source.connect() as client:
            for at in range(0, messages, MPUB_MESSAGES):
                client.mpub("t", [each.encode() for each in expected[at : at + MPUB_MESSAGES]])
        tool = RunningTool(
            "nsq_to_nsq",
            "--topic=t",
            f"--nsqd-tcp-address={source.tcp_address}",
            "--tokens",
            f"--destination-nsqd-http-address={destination.http_address}",
            directory=tmp_path,
        )
        with tool:
            for number in range(rounds):
                share = messages * (number + 1) // (rounds + 2)
                wait_until(lambda share=share: end_of_log(destination, "t") >= share)  # type: ignore[misc]
                time.sleep(chance.random() * 0.01)
                for victim in chance.sample(["tool", "source", "destination"], 2):
                    kill(victim, tool, source, destination)
            wait_until(lambda: len(set(bodies_in_log(destination, "t"))) == messages, 300)
            wait_until(lambda: is_consumed(source), 120)
            assert tool.stop() == 0, tool.stderr
        counts = Counter(bodies_in_log(destination, "t"))
    assert counts == Counter(expected)


def kill(victim: str, tool: RunningTool, source: Nsqd, destination: Nsqd) -> None:
    if victim == "tool":
        tool.kill()
        tool.start()
        wait_until(lambda: is_subscribed(source))
    elif victim == "source" and os.environ.get(SOURCE_VARIABLE):
        source.stop()
        source.start()
    elif victim == "source":
        source.kill()
        source.start()
    else:
        destination.kill()
        destination.start()


def is_subscribed(source: Nsqd) -> bool:
    return bool(source.channel_stats("t", "nsq_to_nsq").get("client_count"))


def is_consumed(source: Nsqd) -> bool:
    channel = source.channel_stats("t", "nsq_to_nsq")
    keys = ("depth", "in_flight_count", "deferred_count")
    return bool(channel) and not any(channel[key] for key in keys)


def test_an_nsqd_that_knows_no_publish_tokens_is_refused(nsqd: Nsqd) -> None:
    """Its TCP port answers no HTTP; another nsqd's HTTP port would answer 404."""
    done = run_tool(
        "nsq_to_nsq",
        "--topic=t",
        "--tokens",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        f"--destination-nsqd-http-address={nsqd.tcp_address}",
    )
    assert done.returncode == 1
    assert nsqd.tcp_address in last_line(done.stderr)
