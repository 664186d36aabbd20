"""Nothing holds the event loop for long, with 10,000 topics: messages wait for nobody's figures.

A hold is measured in CPU time of the event loop's thread, so that a busy machine does not count.
"""

import asyncio
import gc
import logging
import time
import urllib.request
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue import retention
from pumpline.nsqd.server import Server
from tests.kit.fake_broker import FakeBroker, log_of

T = TypeVar("T")

TOPICS = 10_000
CHANNELS = 2_000  # of one topic
DAMAGED_EVERY = 50
HOLD_S_MAX = 0.2  # slices are of 5 ms; the walks took 0.3 to 2 s
PROBE_S = 0.001


async def longest_hold_s(work: Awaitable[T]) -> float:
    """The longest time for which nobody else had a turn while some work was done."""
    loop = asyncio.get_running_loop()
    longest_s, since_s = 0.0, time.thread_time()

    def probe() -> None:
        nonlocal longest_s, since_s, timer
        now_s = time.thread_time()
        longest_s, since_s = max(longest_s, now_s - since_s), now_s
        timer = loop.call_later(PROBE_S, probe)

    timer = loop.call_soon(probe)
    await asyncio.sleep(2 * PROBE_S)
    await work
    await asyncio.sleep(2 * PROBE_S)
    timer.cancel()
    return longest_s


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics with a message and a channel; of some the cursor or the end of the log is damaged."""
    path = tmp_path_factory.mktemp("data")
    fake = FakeBroker(path)
    topic = fake.topic("template")
    topic.ensure_channel("c")
    fake.publish(topic, b"message")
    fake.checkpoint()
    segment = Path(log_of(topic).segments[0].path).name
    template = path / "topics" / "template"
    files = {file.name: file.read_bytes() for file in template.iterdir()}
    for number in range(TOPICS - 1):
        damage = {}
        if number % DAMAGED_EVERY == 0:
            damage = {"c.cursor": b"damage" * 20}
        elif number % DAMAGED_EVERY == 1:
            damage = {segment: files[segment] + b"damage" * 20_000}
        copied = template.with_name(f"t{number}")
        copied.mkdir()
        for name, data in {**files, **damage}.items():
            (copied / name).write_bytes(data)
    return path


async def holds_s(path: Path) -> dict[str, float]:
    """The longest hold of an nsqd on these files, by what it does."""
    options = Options(data_path=str(path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    server = Server(options, Claim(options))
    found = {"start": await longest_hold_s(server.start())}
    try:
        assert server.broker is not None
        topics = server.broker.topics
        assert len(topics) == TOPICS
        for number in range(CHANNELS):
            topics["t7"].ensure_channel(f"c{number}")
            await asyncio.sleep(0)
        for topic in topics.values():
            topic.channels["c"].note_change()
        address = f"http://127.0.0.1:{server.ports.http}"
        for path_and_query, method in (
            ("/channel/empty?topic=t8&channel=c", "POST"),
            ("/topic/empty?topic=t7", "POST"),
            ("/metrics", "GET"),
            ("/stats?format=json", "GET"),
        ):
            request = urllib.request.Request(address + path_and_query, method=method)
            found[path_and_query] = await longest_hold_s(asyncio.to_thread(_ask, request))
        found["retention"] = await longest_hold_s(asyncio.sleep(1.0))
    finally:
        await server.close()
    return found


@pytest.mark.e2e
def test_no_walk_over_all_topics_holds_the_event_loop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PASS_S", 0.05)
    monkeypatch.setattr(logging.getLogger("pumpline"), "level", logging.CRITICAL)
    gc.disable()  # nsqd freezes what it has after its start; pytest's heap is none of its business
    try:
        found = asyncio.run(holds_s(directory))
    finally:
        gc.enable()
    assert max(found.values()) < HOLD_S_MAX, found


def _ask(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()
