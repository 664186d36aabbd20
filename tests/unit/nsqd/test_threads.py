"""Threads: two brokers in two threads of one process do not get into each other's way, and neither
do the disk and names that are looked up."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import Options
from pumpline.nsqd.server import Server
from tests.kit.daemons import RawClient
from tests.kit.fuzz.inprocess import InProcess

SWITCH_S = 1e-6  # between threads: at every chance, so that what they share is shared
ROUNDS = 40
BODIES = 200
PATIENCE_S = 60.0


class Thread:
    """A broker on an event loop in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        local = "127.0.0.1:0"
        options = Options(data_path=str(self._path), tcp_address=local, http_address=local)
        server = Server(options, Claim(options))
        await server.start()
        self.port = server.ports.tcp
        self._started.set()
        await self._end.wait()
        await server.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[list[int]]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    threads = [Thread(path) for path in paths]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield [thread.port for thread in threads]
    sys.setswitchinterval(interval_s)
    for thread in threads:
        thread.end()


def load(port: int, mark: bytes) -> None:
    """Publishes, and consumes what was published; the bodies are of one letter each."""
    with RawClient(port) as producer, RawClient(port) as consumer:
        consumer.sub("t", "ch")
        consumer.rdy(BODIES)
        bodies = [mark * (50 + number * 37 % 900) for number in range(BODIES)]
        commands = b"".join(b"PUB t\n" + len(body).to_bytes(4) + body for body in bodies)
        for _ in range(ROUNDS):
            producer.send(commands)
            assert [producer.read_response() for _ in bodies] == [b"OK"] * BODIES
            messages = [consumer.read_message() for _ in bodies]
            assert sorted(message.body for message in messages) == sorted(bodies)
            for message in messages:
                consumer.fin(message.id)


def test_both_give_back_what_they_were_given(ports: list[int]) -> None:
    with ThreadPoolExecutor(2) as clients:
        for done in [clients.submit(load, *each) for each in zip(ports, (b"a", b"b"), strict=True)]:
            done.result()


def test_an_fsync_does_not_wait_for_names_that_are_looked_up(tmp_path: Path) -> None:
    """asyncio resolves host names in its default pool, where a dead DNS server keeps threads for
    many seconds."""
    answered = threading.Event()

    async def publish(nsqd: InProcess) -> None:
        loop = asyncio.get_running_loop()
        lookups = [loop.run_in_executor(None, answered.wait) for _ in range(100)]
        topic = nsqd.broker.topics.ensure("t")
        topic.publishing.add(b"x", 0, 1)
        completion, synced = topic.publishing.completion(), asyncio.Event()
        completion.when_done(synced.set)
        try:
            await asyncio.wait_for(synced.wait(), PATIENCE_S)
        finally:
            answered.set()
            await asyncio.gather(*lookups)
        assert completion.succeeded

    with InProcess(tmp_path, ["--sync-every=1"]) as nsqd:
        nsqd.run(publish(nsqd))
