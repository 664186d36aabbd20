"""Clients that ask for much of a log and do not read it: they take neither nsqd's memory nor the
turn of others, and get all of it once they read."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.fuzz.watch import Watch
from tests.kit.wire.stalled import StalledClient
from tests.kit.wire.web import ask

pytestmark = pytest.mark.deviation  # NSQ has no such thing

CONTROL_CHARACTERS = bytes(range(1, 32))  # each is six characters of JSON
BODY = CONTROL_CHARACTERS * 30_000
MESSAGES = 16
PEEK_CLIENTS = 100
RANGE_CLIENTS = 70  # more than nsqd sends to at once
GROWTH_BYTES_MAX = 150 << 20  # a page of BODYs is 45 MB of JSON
PEEK = "/log/peek?topic=t&limit=1000"
RAW = f"/log/raw?topic=t&from=0&to={MESSAGES}"


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("stalled") / "data") as daemon:
        with daemon.connect() as client:
            for _ in range(MESSAGES):
                client.publish("t", BODY)
        yield daemon


def test_clients_that_do_not_read_their_pages_take_little_memory(nsqd: Nsqd) -> None:
    watch = Watch(nsqd)
    before_bytes = watch.memory_bytes()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(StalledClient(nsqd.http_port, PEEK)) for _ in range(PEEK_CLIENTS)
        ]
        for client in clients:
            client.has_answer()
            assert ask(nsqd, "GET", "/ping").body == b"OK"
            growth_bytes = watch.memory_bytes() - before_bytes
            assert growth_bytes < GROWTH_BYTES_MAX, f"{growth_bytes >> 20} MiB more than before"
        assert ask(nsqd, "GET", "/log/peek?topic=t&limit=1").status == 200
        pages = [json.loads(clients[index].read()) for index in (0, PEEK_CLIENTS // 2, -1)]
    for page in pages:
        assert [message["body"].encode() for message in page["messages"]] == [BODY] * 9
        assert page["next"] == 9
    assert watch.memory_bytes() - before_bytes < GROWTH_BYTES_MAX


@pytest.mark.parametrize("order", ["newest=true", "newest=false", "newest=true&contains=1"])
def test_a_page_is_whole_after_its_client_paused(nsqd: Nsqd, topic: str, order: str) -> None:
    """Its messages are read from the log again, from the middle of one on."""
    with nsqd.connect() as client:
        for number in range(30):
            head = b"%d" % number + b"\xff" * (number % 2)
            client.mpub(topic, [head, head + "\u017e".encode() * 200_000])
    target = f"/log/peek?topic={topic}&limit=1000&{order}"
    whole = ask(nsqd, "GET", target)
    assert len(whole.body) > 2_000_000
    with StalledClient(nsqd.http_port, target) as stalled:
        stalled.has_answer()
        assert ask(nsqd, "GET", target).body == whole.body
        assert stalled.read() == whole.body


def test_pages_are_encoded_beside_the_event_loop(nsqd: Nsqd) -> None:
    """Publishes wait for the event loop, which is the thread with the process's id."""
    before = {thread: cpu_ns(nsqd, thread) for thread in threads(nsqd)}
    for _ in range(3):
        assert len(ask(nsqd, "GET", PEEK).body) > 40_000_000
    spent = {thread: cpu_ns(nsqd, thread) - before.get(thread, 0) for thread in threads(nsqd)}
    loop_ns = spent.pop(nsqd.process.pid)
    assert loop_ns < sum(spent.values())


def test_clients_that_do_not_read_their_ranges_are_not_waited_for(nsqd: Nsqd) -> None:
    whole = ask(nsqd, "GET", RAW)
    assert len(whole.body) > MESSAGES * len(BODY)
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(StalledClient(nsqd.http_port, RAW)) for _ in range(RANGE_CLIENTS)
        ]
        for client in stalled:
            client.has_answer()
        assert ask(nsqd, "GET", RAW).body == whole.body
        for client in stalled:
            assert client.read() == whole.body


def threads(nsqd: Nsqd) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{nsqd.process.pid}/task")]


def cpu_ns(nsqd: Nsqd, thread: int) -> int:
    path = Path(f"/proc/{nsqd.process.pid}/task/{thread}/schedstat")
    return int(path.read_text(encoding="ascii").split()[0])
