"""A topic knows what was published with a token, through restarts, damage and lost power."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log.flusher import SYNCED_FLUSH_S
from pumpline.log.publish_tokens import FILE, OLD_FILE
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.storage.publish_tokens import UNWRITTEN_MAX
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of
from tests.kit.publish_tokens import known, names, options, publish, publish_all, restarted

NEVER = {"sync_every": 1_000_000, "sync_timeout_ns": 3600 * NS_PER_S}


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, options())


@pytest.fixture
def grouped(tmp_path: Path) -> FakeBroker:
    """With group commit: an answer waits for the fsync."""
    return FakeBroker(tmp_path, options(sync_every=1))


# -- repeats --------------------------------------------------------------------------------------


def test_a_repeat_is_answered_and_publishes_nothing(broker: FakeBroker) -> None:
    topic = broker.topic()
    publish_all(broker, topic, "a", "b", "a", "a", "b")
    assert (topic.log.end, topic.message_count, topic.upkeep.tokens.repeat_count) == (2, 2, 3)
    assert len(topic.upkeep.tokens) == 2


def test_a_repeat_in_the_same_tick_shares_the_outcome(broker: FakeBroker) -> None:
    topic = broker.topic()
    first, second = publish(topic, "a"), publish(topic, "a")
    assert first is second
    broker.run()
    assert (second.done, second.error, topic.log.end) == (True, None, 1)


def test_a_repeat_waits_for_the_fsync_of_the_first(grouped: FakeBroker) -> None:
    topic = grouped.topic()
    first = publish(topic, "a")
    grouped.run()
    second = publish(topic, "a")
    grouped.run()
    assert not first.done
    assert not second.done
    grouped.settle()
    assert (second.done, second.error, topic.log.end) == (True, None, 1)


def test_a_publish_that_failed_never_was(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    publish_all(broker, topic, "before")
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", fails)
        first, second = publish(topic, "a"), publish(topic, "a")
        broker.run()
    assert first.error == second.error == "no space left on device"
    assert known(topic, "before", "a") == ["before"]
    publish_all(broker, topic, "a")
    assert topic.log.end == 2


def test_a_publish_whose_fsync_failed_never_was(
    tmp_path: Path, grouped: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = grouped.topic()
    publish_all(grouped, topic, *names(3))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        first, second = publish(topic, "a"), publish(topic, "b")
        grouped.settle()
    assert first.error == second.error == "no space left on device"
    assert known(topic, "a", "b") == []
    publish_all(grouped, topic, "b", "a")
    assert topic.log.end == 5
    _, again = restarted(tmp_path)
    assert known(again, *names(3), "a", "b") == [*names(3), "a", "b"]


def fails(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_without_a_file_no_token_is_taken(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", fails)
        with pytest.raises(OSError, match="No space"):
            publish(topic, "a")
    publish_all(broker, topic, "a", "a")
    assert topic.log.end == 1


# -- the bound ------------------------------------------------------------------------------------


def test_the_newest_are_remembered_and_the_others_counted(tmp_path: Path) -> None:
    few = options(max_publish_tokens=10)
    broker = FakeBroker(tmp_path, few)
    topic = broker.topic()
    publish_all(broker, topic, *names(35))
    assert known(topic, *names(35)) == names(10, 25)
    assert (topic.upkeep.tokens.forgotten_count, len(topic.upkeep.tokens)) == (25, 10)
    _, again = restarted(tmp_path, few)
    assert known(again, *names(35)) == names(10, 25)
    assert again.upkeep.tokens.forgotten_count == 0


def test_none_are_remembered_if_that_is_the_bound(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, options(max_publish_tokens=0))
    topic = broker.topic()
    publish_all(broker, topic, "a", "a")
    assert (topic.log.end, topic.upkeep.tokens.repeat_count) == (2, 0)
    assert not (tmp_path / "topics" / "t" / FILE).exists()


def test_an_ephemeral_topic_remembers_in_memory(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, options(max_publish_tokens=2))
    topic = broker.topic("t#ephemeral")
    publish_all(broker, topic, "a", "b", "a", "c", "b")
    assert topic.message_count == 3
    assert known(topic, "a", "b", "c") == ["b", "c"]


# -- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("syncs", [{"sync_every": 1}, {}, NEVER], ids=["each", "some", "never"])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_all_are_known_after_a_kill(tmp_path: Path, syncs: dict[str, int], count: int) -> None:
    broker = FakeBroker(tmp_path, options(**syncs))
    topic = broker.topic()
    broker.publish(topic, b"without a token")
    publish_all(broker, topic, *names(count))
    for run in range(3):  # the second finds what the first made of it
        broker, topic = restarted(tmp_path)
        assert known(topic, *names(count)) == names(count)
        publish_all(broker, topic, *names(count), f"run-{run}")
    assert topic.message_count == 1
    assert topic.log.end == count + 4


def test_all_are_known_after_a_stop_without_a_look_at_the_log(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    publish_all(broker, topic, *names(20))
    topic.close()
    monkeypatch.setattr("pumpline.log.log.recover", None)
    monkeypatch.setattr("pumpline.log.recovered.survey", None)
    _, again = restarted(tmp_path)
    assert known(again, *names(20)) == names(20)


def test_a_topic_without_tokens_is_not_read_for_them(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    for number in range(20):
        broker.publish(topic, b"%d" % number)
    log_of(topic).flush()  # a stop does that,
    log_of(topic).syncing.take_all_dirty()  # and syncs it
    topic.close()
    monkeypatch.setattr("pumpline.log.log.recover", None)
    monkeypatch.setattr("pumpline.log.recovered.survey", None)
    _, again = restarted(tmp_path)
    assert again.log.end == 20
    assert sorted(os.listdir(tmp_path / "topics" / "t"))[-1] == "topic.json"


def test_a_stop_while_an_answer_is_due_leaves_the_log_to_be_read(
    tmp_path: Path, grouped: FakeBroker
) -> None:
    topic = grouped.topic()
    publish_all(grouped, topic, "a")
    publish(topic, "b")
    grouped.run()  # written, not synced
    topic.close()
    _, again = restarted(tmp_path)
    assert known(again, "a", "b") == ["a", "b"]


def test_tokens_outlive_their_messages(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic()
    publish_all(broker, topic, *names(30))
    log = log_of(topic)
    topic.upkeep.retire(len(log.segments) - 1)
    assert log.first > 20
    _, again = restarted(tmp_path)
    assert known(again, *names(30)) == names(30)


def test_tokens_of_messages_that_are_not_synced_outlive_them(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, options(**NEVER))
    topic = broker.topic()
    publish_all(broker, topic, *names(30))
    topic.upkeep.retire(len(log_of(topic).segments) - 1)
    _, again = restarted(tmp_path)
    assert known(again, *names(30)) == names(30)


def test_tokens_are_filed_when_history_has_made_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, of consumed messages whose tokens are in no file yet."""
    broker = FakeBroker(tmp_path, options(**NEVER))
    topic = broker.topic()
    publish_all(broker, topic, *names(30))
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=100)
    broker.finish(consumer, *(offset for offset, _, _ in sink.take()))
    oldest, writev = log_of(topic).segments[0].path, os.writev

    def full(fd: int, parts: list[bytes]) -> int:
        return fails() if os.path.exists(oldest) else writev(fd, parts)

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        completion = publish(topic, "last")
        broker.run()
    assert completion.error is None
    assert log_of(topic).first > 0
    _, again = restarted(tmp_path)
    assert known(again, *names(30), "last") == [*names(30), "last"]


def test_tokens_are_filed_before_there_are_too_many(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=1))
    topic = broker.topic()
    file = tmp_path / "topics" / "t" / FILE
    publish(topic, "first")
    broker.settle()
    size_bytes = file.stat().st_size
    for name in names(UNWRITTEN_MAX - 1):
        publish(topic, name)
    broker.settle()
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    assert file.stat().st_size > size_bytes + 24 * UNWRITTEN_MAX - 1
    assert len(log_of(topic).segments) == 1


def test_with_a_delay_and_a_token_both_survive(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    publish(topic, "later", delay_ns=60_000_000_000)
    broker.settle()
    again, found = restarted(tmp_path)
    assert known(found, "later") == ["later"]
    _, sink = again.consume(found.channels["c"], rdy=1)
    assert sink.take() == []
    again.advance(61)
    assert [body for _, _, body in sink.take()] == [b"later"]


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "noise", "first bit"])
def test_a_damaged_file_is_reported_and_made_up_for_from_the_log(
    tmp_path: Path, broker: FakeBroker, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    publish_all(broker, topic, *names(40))
    file = tmp_path / "topics" / "t" / FILE
    data = file.read_bytes()
    if damage == "torn":
        file.write_bytes(data[:-5])
    elif damage == "noise":
        file.write_bytes(b"\xff" * len(data))
    elif damage == "first bit":
        file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
    _, again = restarted(tmp_path)
    if damage == "gone":  # as if there never were any, but for what a recovery comes by
        assert 0 < len(again.upkeep.tokens) < 40
    else:
        assert known(again, *names(40)) == names(40)
        assert ("make no sense" in caplog.text) == (damage != "empty")
        caplog.clear()
        _, twice = restarted(tmp_path)
        assert known(twice, *names(40)) == names(40)
        assert caplog.text == ""


def test_a_damaged_file_that_cannot_be_mended_is_mended_later(
    tmp_path: Path,
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish_all(broker, broker.topic(), *names(40))
    file = tmp_path / "topics" / "t" / FILE
    file.write_bytes(file.read_bytes()[:-5])
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", fails)
        again, topic = restarted(tmp_path)
    assert "cannot write its tokens" in caplog.text
    assert known(topic, *names(40)) == names(40)
    publish_all(again, topic, *names(40), "more")
    assert topic.log.end == 41
    _, thrice = restarted(tmp_path)
    assert known(thrice, *names(40), "more") == [*names(40), "more"]


def test_a_message_lost_with_the_power_is_not_taken_for_published(
    tmp_path: Path, broker: FakeBroker
) -> None:
    """The file of tokens was written back by the system, the log was not."""
    topic = broker.topic()
    topic.ensure_channel("c")
    publish_all(broker, topic, *names(40))
    topic.close()
    log = log_of(topic)
    lost = [segment for segment in log.segments if segment.first >= 20]
    for segment in lost:
        os.unlink(segment.path)
    again, found = restarted(tmp_path)
    end = lost[0].first
    assert known(found, *names(40)) == names(end)
    publish_all(again, found, *names(40))
    assert found.message_count == 40 - end
    _, twice = restarted(tmp_path)
    assert known(twice, *names(40)) == names(40)


def test_tokens_whose_file_was_lost_with_the_power_are_filed_on_start(
    tmp_path: Path, broker: FakeBroker
) -> None:
    """The log has them, in its newest segment: the next start may find that in another one."""
    publish_all(broker, broker.topic(), "a")
    os.unlink(tmp_path / "topics" / "t" / FILE)
    again, topic = restarted(tmp_path)
    for number in range(20):
        again.publish(topic, b"%d" % number)
        log_of(topic).flush()
    assert len(log_of(topic).segments) > 1
    _, found = restarted(tmp_path)
    assert known(found, "a") == ["a"]


def test_files_that_say_more_than_the_log_has_are_not_believed_later(
    tmp_path: Path, broker: FakeBroker
) -> None:
    topic = broker.topic()
    publish_all(broker, topic, "a")
    for number in range(40):
        broker.publish(topic, b"%d" % number)
        broker.settle()
    topic.close()
    for segment in log_of(topic).segments[1:]:
        os.unlink(segment.path)
    again, found = restarted(tmp_path)
    publish_all(again, found, *names(30))
    _, twice = restarted(tmp_path)
    assert known(twice, "a", *names(30)) == ["a", *names(30)]


def test_a_topic_that_was_deleted_leaves_the_files_of_its_successor_alone(
    tmp_path: Path, broker: FakeBroker
) -> None:
    """A publisher may still be sending its body to it."""
    topic = broker.topic()
    broker.publish(topic, b"x")
    broker.topics.delete(topic.name)
    broker.settle()
    fresh = broker.topic()
    publish_all(broker, fresh, "a")
    before = (tmp_path / "topics" / "t" / FILE).read_bytes()
    completion = publish(topic, "a")
    broker.settle()
    assert completion.error == "exiting"
    assert (tmp_path / "topics" / "t" / FILE).read_bytes() == before
    assert known(topic, "a") == []


def test_the_older_file_goes_with_the_topic(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, options(max_publish_tokens=3))
    topic = broker.topic()
    publish_all(broker, topic, *names(30))
    assert (tmp_path / "topics" / "t" / OLD_FILE).exists()
    broker.topics.delete(topic.name)
    broker.settle()
    fresh = broker.topic()
    assert known(fresh, *names(30)) == []
    publish_all(broker, fresh, *names(30))
    assert fresh.message_count == 30


def killed_before_the_fsync(grouped: FakeBroker) -> Topic:
    """A topic of a new process, with a publish of the old one that was written and not synced."""
    completion = publish(grouped.founded(), "once")
    grouped.run()
    assert not completion.done
    grouped.threads.waiting.clear()
    return grouped.load()["t"]


def test_a_repeat_waits_until_what_a_killed_process_wrote_is_synced(grouped: FakeBroker) -> None:
    """It was answered at once: a loss of power could take what was acknowledged."""
    topic = killed_before_the_fsync(grouped)
    completion = publish(topic, "once")
    assert not completion.done
    grouped.advance(SYNCED_FLUSH_S)
    grouped.settle()
    assert (completion.done, completion.error, topic.log.end) == (True, None, 1)
    assert publish(topic, "once").done
    assert topic.message_count == 0


def test_a_repeat_fails_when_what_a_killed_process_wrote_cannot_be_synced(
    grouped: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        broken.setattr(os, "fsync", refuse)
        topic = killed_before_the_fsync(grouped)
        completion = publish(topic, "once")
        grouped.advance(SYNCED_FLUSH_S)
        grouped.settle()
    assert (completion.done, completion.error) == (True, "input/output error")
    completion = publish(topic, "once")
    assert not completion.done
    grouped.advance(2.5)  # more than --sync-timeout
    grouped.settle()
    assert (completion.done, completion.error, topic.log.end) == (True, None, 1)


def test_a_repeat_fails_when_its_topic_is_deleted_first(grouped: FakeBroker) -> None:
    topic = killed_before_the_fsync(grouped)
    completion = publish(topic, "once")
    grouped.topics.delete("t")
    assert (completion.done, completion.error) == (True, "exiting")
