"""A data directory that Go nsqd left is taken over at start: everything in its disk queues is
delivered to the channels it was for, once, and the files are kept.

The original reads its own files, so what differs here is what it says and where the files go.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import DEFAULT_COMMAND, Nsqd, wait_until
from tests.kit.go_diskqueues import Stored, data_path, meta_path, record, write_meta, write_queue
from tests.kit.wire.admin import await_channel, await_topic
from tests.kit.wire.session import Message, Session
from tests.wire.conftest import Connect

pytestmark = pytest.mark.deviation

PUBLISHED_NS = 1_600_000_000_000_000_000
BIG = [Stored(b"%07d" % n + bytes(1000), attempts=int(n % 100 == 0)) for n in range(40_000)]


def numbered(tag: str, count: int) -> list[Stored]:
    return [Stored(b"%s %d" % (tag.encode(), n), 0, PUBLISHED_NS + n) for n in range(count)]


ORDERS = numbered("topic", 300)
ARCHIVE = numbered("archive", 500)
RETRIED = [Stored(b"retried %d" % n, n, PUBLISHED_NS) for n in range(1, 6)]
BACKLOG = numbered("backlog", 200)


def write_metadata(path: Path, topics: dict[str, list[str]], *, paused: str = "") -> None:
    path.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "name": topic,
            "paused": topic == paused,
            "channels": [{"name": name, "paused": False} for name in channels] or None,
        }
        for topic, channels in topics.items()
    ]
    (path / "nsqd.dat").write_text(json.dumps({"topics": entries, "version": "1.3.0"}))


def write_directory(path: Path) -> None:
    topics = {
        "orders": ["archive", "mail"],
        "silent": [],
        "odd.diskqueue.000000.dat": ["a.b"],
        "held": ["ch"],
    }
    write_metadata(path, topics, paused="held")
    write_queue(path, "orders", ORDERS[:100], ORDERS[100:])
    write_queue(path, "orders:archive", ARCHIVE[:400], [*RETRIED, *ARCHIVE[400:]], first=12)
    write_queue(path, "orders:mail", [])
    write_queue(path, "silent", BACKLOG)
    write_queue(path, "odd.diskqueue.000000.dat;a.b", numbered("odd", 3))
    write_queue(path, "held", numbered("held", 4))
    write_queue(path, "held:ch", numbered("ch", 5))


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """A daemon on a data directory that it did not make."""
    path = tmp_path_factory.mktemp("import") / "data"
    write_directory(path)
    with Nsqd(path) as daemon:
        yield daemon


def take(session: Session, topic: str, channel: str, count: int) -> list[Message]:
    """Exactly so many messages, finished."""
    session.subscribe(topic, channel, ready=2500)
    messages = session.messages(count)
    session.finish(*messages)
    assert session.before_barrier() == []
    return messages


def kept(messages: list[Message]) -> Counter[tuple[bytes, int, int]]:
    return Counter((m.body, m.attempts, m.timestamp_ns) for m in messages)


def expected(messages: list[Stored]) -> Counter[tuple[bytes, int, int]]:
    return Counter((m.body, m.attempts + 1, m.timestamp_ns) for m in messages)


def test_a_channel_gets_its_queue_and_that_of_the_topic(nsqd: Nsqd, connect: Connect) -> None:
    await_channel(nsqd, "orders", "archive", depth=805)
    messages = take(connect(), "orders", "archive", 805)
    assert kept(messages) == expected([*RETRIED, *ARCHIVE, *ORDERS])
    assert [m.body for m in messages[5:]] == [m.body for m in (*ARCHIVE, *ORDERS)]
    assert len({m.id for m in messages}) == 805
    await_channel(nsqd, "orders", "archive", depth=0, in_flight_count=0)


def test_another_channel_gets_nothing_of_it(nsqd: Nsqd, connect: Connect) -> None:
    await_channel(nsqd, "orders", "mail", depth=300)
    assert kept(take(connect(), "orders", "mail", 300)) == expected(ORDERS)


def test_a_backlog_goes_to_the_first_channel(nsqd: Nsqd, connect: Connect) -> None:
    await_topic(nsqd, "silent", depth=200)
    assert kept(take(connect(), "silent", "first", 200)) == expected(BACKLOG)


def test_odd_names_are_understood(connect: Connect) -> None:
    messages = take(connect(), "odd.diskqueue.000000.dat", "a.b", 3)
    assert kept(messages) == expected(numbered("odd", 3))


def test_a_paused_topic_holds_its_queue_back_and_not_its_channels(
    nsqd: Nsqd, connect: Connect
) -> None:
    await_topic(nsqd, "held", depth=4, paused=True)
    assert kept(take(connect(), "held", "ch", 5)) == expected(numbered("ch", 5))


def test_a_retried_message_counts_on_from_its_attempts(own_nsqd: Nsqd, connect: Connect) -> None:
    write_queue(own_nsqd.data_path, "t:a", [Stored(b"x", attempts=4)])
    own_nsqd.start()
    session = connect(own_nsqd)
    session.subscribe("t", "a", ready=1)
    for attempts in (5, 6):
        message = session.message()
        assert (message.body, message.attempts) == (b"x", attempts)
        session.send(f"REQ {message.id} 0\n".encode())
    own_nsqd.kill()


def test_new_messages_follow_imported_ones(own_nsqd: Nsqd, connect: Connect) -> None:
    write_queue(own_nsqd.data_path, "t:a", numbered("old", 2))
    own_nsqd.start()
    session = connect(own_nsqd)
    session.publish("t", b"new")
    assert [m.body for m in take(session, "t", "a", 3)] == [b"old 0", b"old 1", b"new"]


def test_import_happens_once_and_is_said(own_nsqd: Nsqd, connect: Connect) -> None:
    write_directory(own_nsqd.data_path)
    originals = {p.name: p.read_bytes() for p in own_nsqd.data_path.glob("*diskqueue*")}
    own_nsqd.start()
    assert "IMPORT: orders:archive: 505 messages imported in" in own_nsqd.log_text()
    assert "IMPORT: done: 1017 messages of 7 queues in" in own_nsqd.log_text()
    take(connect(own_nsqd), "orders", "archive", 805)
    assert own_nsqd.stop() == 0
    told = len(own_nsqd.log_text())
    own_nsqd.start()
    assert "IMPORT" not in own_nsqd.log_text()[told:]
    await_channel(own_nsqd, "orders", "archive", depth=0)
    await_channel(own_nsqd, "orders", "mail", depth=300)
    assert list(own_nsqd.data_path.glob("*diskqueue*")) == []
    aside = {p.name: p.read_bytes() for p in own_nsqd.data_path.glob("imported/*/*")}
    assert aside == originals


def test_what_another_nsqd_leaves_later_is_added(own_nsqd: Nsqd, connect: Connect) -> None:
    write_queue(own_nsqd.data_path, "t:a", numbered("first", 2))
    own_nsqd.start()
    connect(own_nsqd).publish("t", b"ours")
    assert own_nsqd.stop() == 0
    write_queue(own_nsqd.data_path, "t:a", [*numbered("second", 1), Stored(b"third", attempts=1)])
    own_nsqd.start()
    received = {m.body: m.attempts for m in take(connect(own_nsqd), "t", "a", 5)}
    assert received == {b"first 0": 1, b"first 1": 1, b"ours": 1, b"second 0": 1, b"third": 2}


def test_metadata_behind_its_files_costs_nothing(own_nsqd: Nsqd, connect: Connect) -> None:
    """As after a kill of the original: messages behind the write position, and a torn one."""
    path = own_nsqd.data_path
    messages = numbered("m", 10)
    write_queue(path, "t:a", messages[:5], messages[5:])
    write_meta(path, "t:a", depth=4, read=(0, len(record(messages[0]))), write=(0, 200))
    with data_path(path, "t:a", 1).open("ab") as file:
        file.write(record(Stored(b"never acknowledged"))[:-3])
    own_nsqd.start()
    assert kept(take(connect(own_nsqd), "t", "a", 9)) == expected(messages[1:])
    assert "IMPORT: t:a: files behind the write position read as well: 1" in own_nsqd.log_text()
    assert "IMPORT: t:a: metadata said 4 messages, 9 found" in own_nsqd.log_text()
    assert "of t:a.diskqueue.000001.dat not read: cut short" in own_nsqd.log_text()


def test_without_metadata_all_files_are_imported(own_nsqd: Nsqd, connect: Connect) -> None:
    messages = numbered("m", 6)
    write_queue(own_nsqd.data_path, "t:a", messages[:3], messages[3:], first=40)
    meta_path(own_nsqd.data_path, "t:a").unlink()
    own_nsqd.start()
    assert kept(take(connect(own_nsqd), "t", "a", 6)) == expected(messages)
    assert "IMPORT: t:a: no usable metadata: reading all files, from number 40 on" in (
        own_nsqd.log_text()
    )


def test_what_cannot_be_read_is_kept_and_the_next_file_is_read(
    own_nsqd: Nsqd, connect: Connect
) -> None:
    path = own_nsqd.data_path
    write_queue(path, "t:a", numbered("a", 2), numbered("b", 2), numbered("c", 2))
    damaged = bytearray(data_path(path, "t:a", 1).read_bytes())
    damaged[len(damaged) // 2 :] = bytes(len(damaged) - len(damaged) // 2)
    data_path(path, "t:a", 1).write_bytes(damaged)
    own_nsqd.start()
    received = [m.body for m in take(connect(own_nsqd), "t", "a", 5)]
    assert received == [b"a 0", b"a 1", b"b 0", b"c 0", b"c 1"]
    (aside,) = path.glob("imported/*/t:a.diskqueue.000001.dat")
    assert aside.read_bytes() == damaged


@pytest.mark.crash
@pytest.mark.slow
def test_a_kill_in_the_middle_brings_nothing_twice_and_loses_nothing(
    own_nsqd: Nsqd, connect: Connect
) -> None:
    path = own_nsqd.data_path
    write_metadata(path, {"big": ["a", "b"]})
    quarter = len(BIG) // 4
    files = [BIG[n * quarter : (n + 1) * quarter] for n in range(4)]
    write_queue(path, "big:a", *files)
    write_queue(path, "big:b", *files)
    for part_bytes in (1 << 20, 30 << 20, 60 << 20):
        begin_and_kill(own_nsqd, part_bytes)
    own_nsqd.start()
    for channel in ("a", "b"):
        session = connect(own_nsqd)
        session.subscribe("big", channel, ready=500)
        received: Counter[tuple[bytes, int]] = Counter()
        for _ in BIG:
            message = session.message()
            received[message.body, message.attempts] += 1
            session.finish(message)
        assert received == Counter((m.body, m.attempts + 1) for m in BIG)
        assert session.before_barrier() == []
    assert "IMPORT: big: was interrupted, beginning again" in own_nsqd.log_text()


def begin_and_kill(nsqd: Nsqd, part_bytes: int) -> None:
    """Start the daemon and kill it once so much of the log is written, or it listens."""
    topic = nsqd.data_path / "topics" / "big"

    def written() -> bool:
        logs = list(topic.glob("*.log"))
        return bool(logs) and sum(log.stat().st_size for log in logs) >= part_bytes

    addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    command = [*DEFAULT_COMMAND, *addresses, f"--data-path={nsqd.data_path}"]
    with nsqd.log_path.open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: written() or b"TCP: listening" in nsqd.log_path.read_bytes())
    finally:
        process.kill()
        process.wait()
