"""`pumpline backup` of an nsqd under load: what is restored has each message that was acknowledged
before the backup began, once, and no channel is further than the messages are."""

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pumpline.tools.backup import copying
from pumpline.tools.backup.copying import CopyError
from pumpline.tools.backup.store import Store, restore
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act

TOPICS = ("orders", "events", "mail")
CHANNEL = "billing"
BATCH = 20
FLAGS = ("--max-bytes-per-file=50000",)  # many segments
BEHIND_MAX = 300  # messages
PAUSE_S = 0.005
POLL_S = 0.1


class Load:
    """Publishes to some topics and consumes one channel of each, and knows what was answered."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._is_over = threading.Event()
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.finished: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        works = (self._publish, self._consume)
        self._threads = [
            threading.Thread(target=work, args=(topic,)) for topic in TOPICS for work in works
        ]

    def __enter__(self) -> "Load":
        for topic in TOPICS:
            act(self._nsqd, "/topic/create", topic=topic)
            act(self._nsqd, "/channel/create", topic=topic, channel=CHANNEL)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _publish(self, topic: str) -> None:
        numbers = itertools.count()
        with self._nsqd.connect() as client:
            while not self._is_over.is_set():
                # Small batches go to the write-ahead log first, large ones to the segment.
                size = 2000 if topic == "mail" else 10
                bodies = [b"%08d" % next(numbers) + bytes(size) for _ in range(BATCH)]
                client.mpub(topic, bodies)
                self.acknowledged[topic] += bodies
                while not self._is_over.wait(PAUSE_S):
                    if len(self.acknowledged[topic]) < len(self.finished[topic]) + BEHIND_MAX:
                        break

    def _consume(self, topic: str) -> None:
        with self._nsqd.connect() as client:
            client.sub(topic, CHANNEL)
            client.rdy(50)
            while not self._is_over.is_set():
                try:
                    message = client.read_message(POLL_S)
                except TimeoutError:  # nothing is published any more, perhaps
                    continue
                self.finished[topic].append(message.body)
                client.fin(message.id)

    def await_growth(self) -> None:
        """Until each topic has more of everything."""
        for known in (self.acknowledged, self.finished):
            counts = {topic: len(known[topic]) for topic in TOPICS}
            wait_until(lambda n=counts, k=known: all(len(k[t]) > n[t] + 5 for t in TOPICS))


@contextmanager
def loaded(path: Path, *flags: str) -> Iterator[tuple[Nsqd, Load]]:
    with Nsqd(path, [*FLAGS, *flags]) as nsqd, Load(nsqd) as load:
        load.await_growth()
        yield nsqd, load


def copy_of(books: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {topic: list(bodies) for topic, bodies in books.items()}


def drained(nsqd: Nsqd, topic: str, channel: str) -> list[bytes]:
    """All that the channel has, answered."""
    bodies: list[bytes] = []
    waiting = nsqd.channel_stats(topic, channel)["depth"]
    with nsqd.connect() as client:
        client.sub(topic, channel)
        client.rdy(100)
        while len(bodies) < waiting:
            message = client.read_message()
            client.fin(message.id)
            bodies.append(message.body)
        client.rdy(0)
    return bodies


def check_restored(
    path: Path, acknowledged: dict[str, list[bytes]], finished: dict[str, list[bytes]]
) -> None:
    """`acknowledged` before the backup began, `finished` when it had ended."""
    with Nsqd(path, FLAGS) as nsqd:
        for topic in TOPICS:
            again = drained(nsqd, topic, CHANNEL)
            assert set(acknowledged[topic]) - set(finished[topic]) <= set(again), topic
            act(nsqd, "/channel/create", topic=topic, channel="all")
            act(nsqd, "/channel/seek", topic=topic, channel="all", to="beginning")
            counts = Counter(drained(nsqd, topic, "all"))
            assert all(counts[body] == 1 for body in acknowledged[topic]), topic
            assert max(counts.values()) == 1, topic


@pytest.mark.slow
@pytest.mark.parametrize("sync_every", [2500, 1])
def test_a_backup_under_load_has_all_that_was_acknowledged(tmp_path: Path, sync_every: int) -> None:
    store = Store(tmp_path / "backups")
    backups = []
    with loaded(tmp_path / "data", f"--sync-every={sync_every}") as (nsqd, load):
        for _ in range(2):
            flushed = nsqd.http("GET", "/log/raw?topic=mail&from=0&to=1")  # so it has segments
            assert flushed[0] == 200
            acknowledged = copy_of(load.acknowledged)
            path, copied = store.add(nsqd.data_path)
            backups.append((path, acknowledged, copy_of(load.finished), copied))
            load.await_growth()
    assert backups[0][3].linked_bytes == 0
    assert backups[1][3].linked_bytes > 0
    for number, (path, acknowledged, finished, _) in enumerate(backups):
        restore(path, tmp_path / f"restored-{number}")
        check_restored(tmp_path / f"restored-{number}", acknowledged, finished)


@pytest.mark.slow
def test_a_killed_backup_leaves_the_one_before(tmp_path: Path) -> None:
    store = tmp_path / "backups"
    command = [sys.executable, "-m", "pumpline.tools.pumpline", "backup"]
    command += [f"--data-path={tmp_path / 'data'}", f"--to={store}"]
    with loaded(tmp_path / "data") as (_, load):
        acknowledged = copy_of(load.acknowledged)
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
        finished = copy_of(load.finished)
        (before,) = Store(store).names()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: (store / ".partial").exists() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert Store(store).names()[:1] == [before]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
        assert not (store / ".partial").exists()
        assert len(Store(store).names()) >= 2
    restore(store / before, tmp_path / "restored")
    check_restored(tmp_path / "restored", acknowledged, finished)


def test_every_moment_of_a_backup_is_one_to_publish_and_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two files that are read, messages are published, flushed and finished."""
    store = Store(tmp_path / "backups")
    with Nsqd(tmp_path / "data", FLAGS) as nsqd, nsqd.connect() as producer:
        act(nsqd, "/topic/create", topic="orders")
        act(nsqd, "/channel/create", topic="orders", channel=CHANNEL)
        with nsqd.connect() as consumer:
            consumer.sub("orders", CHANNEL)
            consumer.rdy(1)
            numbers = itertools.count()
            finished: list[bytes] = []

            def live() -> None:
                producer.mpub("orders", [b"%08d" % next(numbers) + bytes(500) for _ in range(7)])
                message = consumer.read_message()
                consumer.fin(message.id)
                finished.append(message.body)
                assert nsqd.http("GET", "/log/raw?topic=orders&from=0&to=1")[0] == 200  # flushes

            for _ in range(10):
                live()
            acknowledged = 70
            copy_small, copy_bytes = copying.Copy._copy_small, copying._copy_bytes

            def small(self: copying.Copy, source: Path, target: Path) -> None:
                live()
                copy_small(self, source, target)
                live()

            def segment(fd: int, target: Path, size_bytes: int) -> None:
                live()
                copy_bytes(fd, target, size_bytes)

            monkeypatch.setattr(copying.Copy, "_copy_small", small)
            monkeypatch.setattr(copying, "_copy_bytes", segment)
            path, _ = store.add(nsqd.data_path)
    restore(path, tmp_path / "restored")
    with Nsqd(tmp_path / "restored", FLAGS) as nsqd:
        again = {int(body[:8]) for body in drained(nsqd, "orders", CHANNEL)}
        assert set(range(acknowledged)) - {int(body[:8]) for body in finished} <= again
        act(nsqd, "/channel/create", topic="orders", channel="all")
        act(nsqd, "/channel/seek", topic="orders", channel="all", to="beginning")
        every = [int(body[:8]) for body in drained(nsqd, "orders", "all")]
        assert sorted(every) == list(range(len(every)))
        assert len(every) >= acknowledged
        # No channel knows of a message that is not there.
        assert log_end(nsqd, "orders") == len(every)
        # A message that is published now has no id that the original may have given to another.
        with nsqd.connect() as client:
            client.publish("orders", b"new")
        assert log_end(nsqd, "orders") > 100_000_000


def log_end(nsqd: Nsqd, topic: str) -> int:
    return int(json.loads(nsqd.http("GET", f"/log/offsets?topic={topic}")[1])["end"])


@pytest.mark.parametrize("step", ["_copy_state", "_copy_wal", "_copy_log"])
def test_messages_that_are_flushed_after_any_step_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A flush moves messages from one file to another, while both are copied."""
    data = tmp_path / "data"
    done = getattr(copying.Copy, step)

    def then_flush(self: copying.Copy, *arguments: object) -> None:
        done(self, *arguments)
        wait_until(lambda: not list(data.glob("wal-*")))

    monkeypatch.setattr(copying.Copy, step, then_flush)
    with Nsqd(data) as nsqd, nsqd.connect() as client:
        act(nsqd, "/topic/create", topic="orders")
        act(nsqd, "/channel/create", topic="orders", channel=CHANNEL)
        for number in range(5):
            client.publish("orders", b"%d" % number)
        path, _ = Store(tmp_path / "backups").add(data)
    restore(path, tmp_path / "restored")
    with Nsqd(tmp_path / "restored") as nsqd:
        assert sorted(drained(nsqd, "orders", CHANNEL)) == [b"0", b"1", b"2", b"3", b"4"]


def test_pauses_settings_delays_and_holds_are_in_it(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        act(nsqd, "/topic/create", topic="orders")
        for name in (CHANNEL, "gone"):
            act(nsqd, "/channel/create", topic="orders", channel=name)
        act(nsqd, "/channel/pause", topic="orders", channel=CHANNEL)
        act(nsqd, "/channel/delete", topic="orders", channel="gone")
        act(nsqd, "/hold/create", topic="orders", hold="spark")
        nsqd.http("POST", "/topic/settings?topic=orders", b'{"max_attempts":7}')
        nsqd.http("POST", "/pub?topic=orders&defer=3600000", b"later")
        nsqd.http("POST", "/pub?topic=orders&token=t1", b"once")
        wait_until(lambda: b"billing" in (tmp_path / "data/nsqd.dat").read_bytes())
        wait_until(lambda: not list((tmp_path / "data/topics/orders").glob("*.deleted")))
        path, _ = Store(tmp_path / "backups").add(nsqd.data_path)
    restore(path, tmp_path / "restored")
    with Nsqd(tmp_path / "restored") as nsqd:
        channels = {
            each["channel_name"]: each for each in nsqd.stats("orders")["topics"][0]["channels"]
        }
        assert sorted(channels) == [CHANNEL, "spark"]
        assert channels[CHANNEL]["paused"]
        assert (channels[CHANNEL]["depth"], channels[CHANNEL]["deferred_count"]) == (1, 1)
        assert b'"max_attempts":7' in nsqd.http("GET", "/topic/settings?topic=orders")[1]
        nsqd.http("POST", "/pub?topic=orders&token=t1", b"once")
        assert nsqd.channel_stats("orders", CHANNEL)["depth"] == 1


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CopyError, match="is no data directory of an nsqd"):
        Store(tmp_path / "backups").add(tmp_path / "empty")
    with Nsqd(tmp_path / "data") as nsqd:
        with pytest.raises(CopyError, match="backups belong elsewhere"):
            Store(nsqd.data_path / "backups").add(nsqd.data_path)
        store = Store(tmp_path / "backups")
        path, _ = store.add(nsqd.data_path)
    with pytest.raises(CopyError, match="is not empty"):
        restore(path, tmp_path / "data")
    with pytest.raises(CopyError, match="is no backup"):
        restore(path / "data", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pumpline.tools.pumpline", "backup"]
    command += [f"--data-path={tmp_path / 'data'}", f"--to={tmp_path / 'backups'}", "--keep=2"]
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.http("POST", "/pub?topic=orders", b"x")
        made = [Store(tmp_path / "backups").add(nsqd.data_path)[0].name for _ in range(2)]
        done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    left = Store(tmp_path / "backups").names()
    assert len(left) == 2
    assert left[0] == made[1]


@pytest.mark.parametrize("step", ["_copy_state", "_copy_wal", "_copy_log"])
def test_what_is_finished_after_any_step_is_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The copy of a cursor is from before: no channel skips a message."""
    cursor = tmp_path / f"data/topics/orders/{CHANNEL}.cursor"
    done = getattr(copying.Copy, step)
    bodies = [b"%d" % number for number in range(5)]
    with Nsqd(tmp_path / "data") as nsqd, nsqd.connect() as client:

        def then_finish(self: copying.Copy, *arguments: object) -> None:
            done(self, *arguments)
            before = cursor.read_bytes()
            client.publish("orders", b"late")
            assert sorted(drained(nsqd, "orders", CHANNEL)) == [*bodies, b"late"]
            wait_until(lambda: cursor.read_bytes() != before)

        act(nsqd, "/topic/create", topic="orders")
        act(nsqd, "/channel/create", topic="orders", channel=CHANNEL)
        for body in bodies:
            client.publish("orders", body)
        monkeypatch.setattr(copying.Copy, step, then_finish)
        path, _ = Store(tmp_path / "backups").add(nsqd.data_path)
    restore(path, tmp_path / "restored")
    with Nsqd(tmp_path / "restored") as nsqd:
        again = drained(nsqd, "orders", CHANNEL)
        assert sorted(again)[:5] == bodies
        assert log_end(nsqd, "orders") == len(again)
