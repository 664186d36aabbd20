"""With --sync-every=1 one fsync of the journal acknowledges single messages to quiet topics. The
journal keeps them until their logs are synced. Here a loss of power is a file that is cut by hand;
the simulator plays real ones."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pumpline.core.messages.batches import HEADER_BYTES
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.filing import RETRY_S, SYNCED_FILE_S
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, log_of

EIO = "input/output error"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files and directories that were synced."""
    names: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return names


def quiet_topic(broker: FakeBroker, name: str = "t") -> Topic:
    """One whose next message goes to the journal."""
    topic = broker.topic(name)
    topic.channel("c")
    assert settled(broker, broker.pub(topic, b"first")) is None
    assert topic.journaled is not None
    return topic


def settled(broker: FakeBroker, ticket: Ticket) -> str | None:
    """The error of a publish, once ticks and threads have run."""
    broker.settle()
    assert ticket.done
    return ticket.error


def file(broker: FakeBroker) -> None:
    """Time passes until the journal is filed, and the logs are synced."""
    broker.advance(SYNCED_FILE_S)
    broker.settle()


def journal_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in tmp_path.glob("journal-*"))


def failing(path: Path) -> Callable[[int], None]:
    """An fsync that fails for this file or directory alone."""
    fsync = os.fsync

    def sync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    return sync


def raising(number: int) -> Callable[..., int]:
    """A system call that always fails."""

    def call(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


def received(broker: FakeBroker) -> list[bytes]:
    """What a consumer of the topic, as it is on disk, gets."""
    _, sink = broker.consume(broker.load()["t"].channel("c"), rdy=100)
    broker.settle()
    return [body for _, _, body in sink.take()]


def test_one_fsync_acknowledges_what_was_published_to_many_topics(
    broker: FakeBroker, synced: list[str]
) -> None:
    topics = [quiet_topic(broker, f"t{number}") for number in range(20)]
    synced.clear()
    tickets = [broker.pub(topic) for topic in topics]
    broker.run()
    assert not any(ticket.done for ticket in tickets)
    broker.settle()
    assert all(ticket.succeeded for ticket in tickets)
    assert [name for name in synced if name.startswith("journal")] == ["journal-0"]
    assert not any(name.endswith(".log") for name in synced)


def test_the_journal_is_emptied_when_the_logs_are_synced(
    broker: FakeBroker, synced: list[str], tmp_path: Path
) -> None:
    topic = quiet_topic(broker)
    assert settled(broker, broker.pub(topic)) is None
    synced.clear()
    broker.advance(SYNCED_FILE_S)
    assert log_of(topic).end == 2
    assert journal_bytes(tmp_path) > 0
    broker.settle()
    assert [name for name in synced if name.endswith(".log")]
    assert journal_bytes(tmp_path) == 0


def test_what_is_not_synced_is_not_filed(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    assert settled(broker, broker.pub(topic, b"second")) is None
    ticket = broker.pub(topic, b"third")
    broker.run()
    assert broker.topics["t"].log.end == 2  # whoever asks sees what was acknowledged
    assert settled(broker, ticket) is None
    assert broker.topics["t"].log.end == 3
    assert received(broker) == [b"first", b"second", b"third"]


def test_other_publishes_wait_for_what_the_journal_has(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    first = broker.pub(topic, b"second")
    broker.run()
    many = bytearray(b"\0\0\0\5third\0\0\0\6fourth")
    topic.intake.put_many(many, 0, len(many), 2)
    ticket = topic.intake.ticket()
    broker.run()
    assert log_of(topic).end == 1
    assert settled(broker, ticket) is None
    assert first.succeeded
    assert received(broker) == [b"first", b"second", b"third", b"fourth"]


def test_what_the_journal_cannot_sync_is_refused_and_does_not_come(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    assert settled(broker, broker.pub(topic, b"second")) is None
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing(tmp_path / "journal-0"))
        refused = broker.pub(topic, b"refused")
        broker.run()
        many = bytearray(b"\0\0\0\4also")
        topic.intake.put_many(many, 0, len(many), 1)
        also = topic.intake.ticket()
        broker.settle()
    assert (refused.error, also.error) == (EIO, EIO)
    assert settled(broker, broker.pub(topic, b"third")) is None
    assert received(broker) == [b"first", b"second", b"third"]


def test_what_is_put_while_the_journal_turns_out_not_to_be_synced_is_refused_as_well(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing(tmp_path / "journal-0"))
        refused = broker.pub(topic, b"refused")
        broker.run()
        broker.threads.work()
    late = broker.pub(topic, b"late")
    broker.threads.report()  # before the tick that would have written it
    broker.settle()
    assert (refused.error, late.error) == (EIO, EIO)
    assert settled(broker, broker.pub(topic, b"second")) is None
    assert received(broker) == [b"first", b"second"]


def test_what_was_refused_is_cut_off_later_if_the_journal_was_about_to_be_filed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing(tmp_path / "journal-0"))
        broken.setattr(os, "ftruncate", raising(errno.EIO))
        refused = broker.pub(topic, b"refused")
        broker.run()
        broker.advance(SYNCED_FILE_S)  # the other file is written to from here on
        broker.settle()
    assert refused.error == EIO
    assert journal_bytes(tmp_path)
    broker.advance(RETRY_S)
    assert not journal_bytes(tmp_path)
    assert received(FakeBroker(tmp_path, broker.options)) == [b"first"]


def test_a_log_that_cannot_be_synced_costs_nothing_that_was_acknowledged(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.channel("c"), rdy=1)
    assert settled(broker, broker.pub(topic, b"first")) is None
    assert settled(broker, broker.pub(topic, b"second")) is None  # it has no credit any more
    tickets = [broker.pub(topic, body) for body in (b"third", b"fourth")]
    broker.settle()
    assert all(ticket.succeeded for ticket in tickets)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing(Path(log_of(topic).directory)))
        file(broker)
        assert topic.journaled is not None
        assert topic.message_count == 2
        assert journal_bytes(tmp_path) > 0
        refused = broker.pub(topic, b"refused")
        assert settled(broker, refused) is not None
    broker.advance(3)
    broker.settle()
    assert log_of(topic).end == topic.message_count == 4
    assert journal_bytes(tmp_path) == 0
    assert [body for _, _, body in sink.take()] == [b"first"]
    assert received(broker) == [b"first", b"second", b"third", b"fourth"]


def test_a_loss_of_power_takes_nothing_that_the_journal_has(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    for body in (b"second", b"third"):
        assert settled(broker, broker.pub(topic, body)) is None
    path = Path(log_of(topic).segments[-1].path)
    synced_bytes = path.stat().st_size
    broker.advance(SYNCED_FILE_S)  # filed, and no fsync yet
    assert path.stat().st_size > synced_bytes
    os.truncate(path, synced_bytes + HEADER_BYTES)
    assert received(broker) == [b"first", b"second", b"third"]


def test_a_loss_of_power_may_take_what_is_before_what_it_spares(broker: FakeBroker) -> None:
    """Of two batches that were filed and not synced, the first may be lost and the second not."""
    topic = quiet_topic(broker)
    path = Path(log_of(topic).segments[-1].path)
    begins = path.stat().st_size
    for body in (b"second", b"third"):
        ticket = broker.pub(topic, body)
        broker.run()
        broker.threads.work(-1)  # the fsync of the journal, not that of the log
        broker.threads.report()
        assert ticket.succeeded
        topic.file()
        broker.topics.journaling.offer(topic)
    ends = path.stat().st_size
    middle = (begins + ends) // 2
    data = path.read_bytes()
    path.write_bytes(data[:begins] + bytes(middle - begins) + data[middle:])
    assert received(broker) == [b"first", b"second", b"third"]


def test_a_stop_leaves_no_journal_and_all_of_it_in_the_log(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = quiet_topic(broker)
    assert settled(broker, broker.pub(topic, b"second")) is None
    late = broker.pub(topic, b"late")
    broker.run()
    journaling = broker.topics.journaling
    journaling.stop()
    broker.settle()
    journaling.close()
    assert late.done
    assert list(tmp_path.glob("journal-*")) == []
    expected = [b"first", b"second", b"late"][: 3 if late.succeeded else 2]
    assert received(broker) == expected


def test_a_stop_on_a_full_disk_leaves_what_was_acknowledged_before_a_kill(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    assert settled(broker, broker.pub(topic, b"second")) is None
    after_kill = FakeBroker(tmp_path, broker.options)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", raising(errno.ENOSPC))
        after_kill.load()
        after_kill.topics.journaling.stop()
        after_kill.settle()
        after_kill.topics.journaling.close()
    assert received(FakeBroker(tmp_path, broker.options)) == [b"first", b"second"]


def test_a_topic_that_is_deleted_meanwhile_takes_nothing_of_others_with_it(
    broker: FakeBroker,
) -> None:
    kept, deleted = quiet_topic(broker, "t"), quiet_topic(broker, "gone")
    tickets = [broker.pub(kept, b"second"), broker.pub(deleted, b"lost")]
    broker.run()
    broker.topics.delete("gone")
    again = broker.topic("gone")
    broker.settle()
    assert all(ticket.done for ticket in tickets)
    assert (again.message_count, again.journaled) == (0, None)
    broker.advance(SYNCED_FILE_S)
    broker.settle()
    assert log_of(kept).end == 2
