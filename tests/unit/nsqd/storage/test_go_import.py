"""Disk queues of Go nsqd become messages of the right channels: all of them, and each once,
wherever a crash may interrupt the import."""

import errno
import json
import logging
import os
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pumpline.core.messages.batches import read_batch
from pumpline.core.messages.deferred import Pendings
from pumpline.core.messages.delivery import DeliveryDelta
from pumpline.log import cursor
from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory, DirectoryError
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topics import Topics
from pumpline.nsqd.storage import go_import
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.go_import import import_queues
from tests.kit.go_diskqueues import Stored, data_path, meta_path, record, write_meta, write_queue

SEGMENT_BYTES_MAX = 64  # every batch gets a segment of its own


class Delivered(NamedTuple):
    """A message as a consumer would get it."""

    body: bytes
    attempts: int
    timestamp_ns: int


def topics_on(path: Path) -> Topics:
    """Topics at start-up: nothing runs in threads or later."""
    options = Options(max_bytes_per_file=SEGMENT_BYTES_MAX)

    def offload(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        raise AssertionError("nothing is to be done in a thread")

    def later(delay_s: float, callback: Callable[[], None]) -> Any:
        return None

    tick = Tick(lambda callback: None, later=later)
    disk = Disk(
        Directory(str(path)), options, clocks=tick.read_clocks, offload=offload, later=later
    )
    return Topics(options, tick, disk)


def start(path: Path) -> Topics:
    """What nsqd does with its data directory before it listens."""
    topics = topics_on(path)
    try:
        topics.load()
        return topics
    finally:
        topics.disk.files.close()


def import_on(path: Path) -> None:
    topics = topics_on(path)
    import_queues(topics.disk, topics.options)


def write_names(path: Path, *topics: tuple[str, list[str]], paused: bool = False) -> None:
    """nsqd.dat with these topics and their channels."""
    path.mkdir(parents=True, exist_ok=True)
    entries = [
        {"name": topic, "paused": paused, "channels": [{"name": name} for name in channels]}
        for topic, channels in topics
    ]
    (path / "nsqd.dat").write_text(json.dumps({"topics": entries, "version": "1.3.0"}))


def frames_of(topic: Topic) -> dict[int, bytes]:
    """Every frame of a topic's log, as it is on disk."""
    frames = {}
    path = Path(topic.disk.directory.topic_path(topic.name))
    for segment in sorted(path.glob("*.log")):
        data = memoryview(segment.read_bytes())
        at = 0
        while at < len(data):
            batch = read_batch(data, at)
            at += batch.size_bytes
            for offset in range(batch.first, batch.end):
                assert offset not in frames
                frames[offset] = bytes(batch.cut(offset, offset + 1))
    return frames


def waiting(topic: Topic, channel: str) -> list[Delivered]:
    """What a consumer of the channel would get, in order."""
    delivery = topic.channels[channel].delivery
    frames = frames_of(topic)
    fresh = delivery.finished.gaps(delivery.next, topic.pumped)
    offsets = {offset: delivery.attempts.get(offset, 1) + 1 for offset in delivery.ready}
    offsets.update((offset, 1) for a, b in fresh for offset in range(a, b))
    assert len(offsets) == topic.channels[channel].depth
    for offset in offsets:
        assert frames[offset][18:34] == b"%016x" % (topic.log.base_id + offset)
    return [delivered(frames[offset], attempts) for offset, attempts in offsets.items()]


def delivered(frame: bytes, attempts: int) -> Delivered:
    assert int.from_bytes(frame[16:18]) == 1
    return Delivered(frame[34:], attempts, int.from_bytes(frame[8:16]))


def backlog(topic: Topic) -> list[bytes]:
    """What no channel has been given."""
    return [frame[34:] for offset, frame in frames_of(topic).items() if offset >= topic.pumped]


def bodies(messages: list[Delivered]) -> list[bytes]:
    return [message.body for message in messages]


def stored(*texts: str) -> list[Stored]:
    return [Stored(text.encode()) for text in texts]


def test_a_channel_gets_its_own_messages_then_those_of_the_topic(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a", "b", "c"]))
    write_queue(tmp_path, "t", stored("t1", "t2"))
    write_queue(tmp_path, "t:a", stored("a1"), stored("a2"))
    write_queue(tmp_path, "t:b", stored("b1"))
    topic = start(tmp_path)["t"]
    assert bodies(waiting(topic, "a")) == [b"a1", b"a2", b"t1", b"t2"]
    assert bodies(waiting(topic, "b")) == [b"b1", b"t1", b"t2"]
    assert bodies(waiting(topic, "c")) == [b"t1", b"t2"]


def test_a_topic_without_channels_keeps_its_queue_as_backlog(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", []))
    write_queue(tmp_path, "t", stored("t1", "t2"))
    topic = start(tmp_path)["t"]
    assert (topic.channels, topic.depth, backlog(topic)) == ({}, 2, [b"t1", b"t2"])


def test_attempts_and_timestamps_are_kept(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a"]))
    messages = [Stored(b"0", 0, 10), Stored(b"3", 3, 11), Stored(b"1", 1, 12), Stored(b"00", 0, 13)]
    write_queue(tmp_path, "t:a", messages)
    found = waiting(start(tmp_path)["t"], "a")
    assert sorted(found) == sorted(
        Delivered(m.body, m.attempts + 1, m.timestamp_ns) for m in messages
    )
    assert bodies(found) == [b"3", b"1", b"0", b"00"]  # what came back goes first


def test_attempts_are_kept_for_a_bounded_number_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(go_import, "ATTEMPTS_MAX", 2)
    write_names(tmp_path, ("t", ["a"]))
    write_queue(tmp_path, "t:a", [Stored(b"%d" % n, attempts=5) for n in range(4)])
    found = {m.body: m.attempts for m in waiting(start(tmp_path)["t"], "a")}
    assert found == {b"0": 6, b"1": 6, b"2": 1, b"3": 1}
    assert "IMPORT: t:a: attempts of 2 messages not kept" in caplog.text


def test_channels_and_topics_that_only_queues_name_are_created(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", stored("a1"))
    write_queue(tmp_path, "u", stored("u1"))
    topics = start(tmp_path)
    assert bodies(waiting(topics["t"], "a")) == [b"a1"]
    assert backlog(topics["u"]) == [b"u1"]


def test_empty_queues_create_nothing_and_are_put_aside(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", [])
    write_meta(tmp_path, "u", depth=0, read=(3, 0), write=(3, 0))
    assert start(tmp_path) == {}
    assert sorted(path.name for path in tmp_path.glob("imported/*/*")) == [
        "t:a.diskqueue.000000.dat",
        "t:a.diskqueue.meta.dat",
        "u.diskqueue.meta.dat",
    ]


def test_both_forms_of_a_channel_queue_are_taken(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", [*stored("a1"), Stored(b"a2", attempts=1)])
    write_queue(tmp_path, "t;a", [*stored("a3"), Stored(b"a4", attempts=7)])
    found = {m.body: m.attempts for m in waiting(start(tmp_path)["t"], "a")}
    assert found == {b"a1": 1, b"a2": 2, b"a3": 1, b"a4": 8}


@pytest.mark.parametrize("name", ["t#ephemeral:a", "t:a#ephemeral", "t:", "no good", "t:a:b"])
def test_queues_that_can_have_no_channel_are_left_alone(tmp_path: Path, name: str) -> None:
    write_queue(tmp_path, name, stored("x"))
    assert start(tmp_path) == {}
    assert data_path(tmp_path, name, 0).read_bytes() == record(Stored(b"x"))


def test_a_paused_topic_gives_its_channels_theirs_and_keeps_its_own(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a", "b"]), paused=True)
    write_queue(tmp_path, "t", stored("t1"))
    write_queue(tmp_path, "t:a", [*stored("a1"), Stored(b"a2", attempts=4)])
    topic = start(tmp_path)["t"]
    assert bodies(waiting(topic, "a")) == [b"a2", b"a1"]
    assert bodies(waiting(topic, "b")) == []
    assert (topic.depth, backlog(topic)) == (1, [b"t1"])


def test_what_a_paused_topic_holds_back_stays_back_at_a_second_import(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a"]), paused=True)
    write_queue(tmp_path, "t", stored("t1"))
    start(tmp_path)
    write_queue(tmp_path, "t:a", [Stored(b"a1", attempts=4)])
    topic = start(tmp_path)["t"]
    assert waiting(topic, "a") == []
    write_names(tmp_path, ("t", ["a"]))
    assert bodies(waiting(start(tmp_path)["t"], "a")) == [b"t1", b"a1"]


def test_a_second_import_adds_to_what_is_there(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a", "b"]))
    write_queue(tmp_path, "t", stored("t1", "t2"))
    write_queue(tmp_path, "t:a", [Stored(b"a1", attempts=2)])
    start(tmp_path)
    write_queue(tmp_path, "t", stored("t3"))
    write_queue(tmp_path, "t:a", [*stored("a2"), Stored(b"a3", attempts=5)])
    write_queue(tmp_path, "t:b", stored("b1"))
    topic = start(tmp_path)["t"]
    assert [(m.body, m.attempts) for m in waiting(topic, "a")] == [
        (b"a1", 3),
        (b"t1", 1),
        (b"t2", 1),
        (b"a3", 6),
        (b"a2", 1),
        (b"t3", 1),
    ]
    assert bodies(waiting(topic, "b")) == [b"t1", b"t2", b"b1", b"t3"]


def test_originals_are_kept_and_not_imported_again(tmp_path: Path) -> None:
    write_names(tmp_path, ("t", ["a"]))
    write_queue(tmp_path, "t:a", stored("a1"), stored("a2"))
    originals = {path.name: path.read_bytes() for path in tmp_path.glob("*diskqueue*")}
    for _ in range(2):
        assert bodies(waiting(start(tmp_path)["t"], "a")) == [b"a1", b"a2"]
        aside = {path.name: path.read_bytes() for path in tmp_path.glob("imported/*/*")}
        assert aside == originals
        assert list(tmp_path.glob("*diskqueue*")) == []


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_originals_are_kept_elsewhere_if_the_name_is_taken(tmp_path: Path, kind: str) -> None:
    write_queue(tmp_path, "t:a", stored("a1"))
    taken = tmp_path / "imported"
    taken.write_bytes(b"notes") if kind == "file" else taken.symlink_to("nowhere")
    assert bodies(waiting(start(tmp_path)["t"], "a")) == [b"a1"]
    assert taken.is_symlink() or taken.read_bytes() == b"notes"
    assert list(tmp_path.glob("imported-2/*/*diskqueue*")) != []
    assert list(tmp_path.glob("*diskqueue*")) == []


def test_bad_files_stay_where_they_are(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", stored("a1"))
    bad = tmp_path / "t:a.diskqueue.000007.dat.bad"
    bad.write_bytes(record(Stored(b"x")))
    assert bodies(waiting(start(tmp_path)["t"], "a")) == [b"a1"]
    assert bad.exists()


def test_what_is_unusual_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write_queue(tmp_path, "t:a", stored("a1", "a2"))
    write_meta(tmp_path, "t:a", depth=1, read=(0, 0), write=(0, len(record(Stored(b"a1")))))
    path = data_path(tmp_path, "t:a", 0)
    path.write_bytes(path.read_bytes() + b"torn")
    write_queue(tmp_path, "u", stored("u1"))
    meta_path(tmp_path, "u").unlink()
    start(tmp_path)
    assert "t:a: metadata ends at 32 of file 0, the file at 68: reading to its end" in caplog.text
    assert "t:a: metadata said 1 messages, 2 found" in caplog.text
    assert "t:a: 4 bytes at 64 of t:a.diskqueue.000000.dat not read: cut short" in caplog.text
    assert "u: no usable metadata: reading all files" in caplog.text
    assert "IMPORT: t:a: 2 messages imported in" in caplog.text
    assert "IMPORT: done: 3 messages of 2 queues in" in caplog.text


def test_progress_is_told_while_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(go_import, "PROGRESS_S", 0.0)
    caplog.set_level(logging.INFO)
    write_queue(tmp_path, "t", [Stored(b"x")] * 600)
    start(tmp_path)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().endswith(" imported")]
    assert lines == ["IMPORT: t: 256 messages imported", "IMPORT: t: 512 messages imported"]


def test_memory_does_not_grow_with_the_queue(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", *[[Stored(bytes(16 << 10))] * 256] * 4)
    topics = topics_on(tmp_path)
    tracemalloc.start()
    try:
        import_queues(topics.disk, topics.options)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        topics.disk.files.close()
    assert len(waiting(start(tmp_path)["t"], "a")) == 1024
    assert peak_bytes < 8 << 20  # of 16 MiB


# -- when it goes wrong -----------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


class Faults:
    """Lets the n-th change of the file system fail; a failing write is half done."""

    CHANGES = ("fsync", "ftruncate", "mkdir", "rename", "replace", "unlink", "write", "writev")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.error: BaseException = Crash()
        for name in self.CHANGES:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "writev":
                    data = b"".join(args[1])
                    real(args[0], [data[: len(data) // 2]])
                raise self.error
            return real(*args, **options)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def write_example(path: Path, tag: str) -> None:
    write_names(path, ("t", ["a", "b"]), ("u", []))
    retried = [Stored(f"{tag} retried {n}".encode(), attempts=n) for n in range(1, 3)]
    write_queue(path, "t", stored(f"{tag} topic 1", f"{tag} topic 2"))
    write_queue(path, "t:a", stored(f"{tag} a 1"), [*retried, *stored(f"{tag} a 2")])
    write_queue(path, "t:b", stored(f"{tag} b 1"))
    write_queue(path, "u", stored(f"{tag} backlog"))


def outcome(path: Path) -> dict[str, Counter[object]]:
    """Everything there is to deliver."""
    topics = start(path)
    return {
        "a": Counter(waiting(topics["t"], "a")),
        "b": Counter(waiting(topics["t"], "b")),
        "u": Counter(backlog(topics["u"])),
    }


@pytest.fixture(params=["first import", "later import"])
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data directory with queues to import, into nothing or into what is there."""
    path = tmp_path / "example"
    path.mkdir()
    if request.param == "later import":
        write_example(path, "earlier")
        start(path)
    write_example(path, "new")
    return path


def copy_of(example: Path, name: str) -> Path:
    path = example.with_name(name)
    shutil.copytree(example, path)
    return path


@pytest.mark.e2e
def test_an_import_that_crashes_anywhere_is_completed_once(example: Path, faults: Faults) -> None:
    expected = outcome(copy_of(example, "undisturbed"))
    crashes = 0
    while True:
        path = copy_of(example, f"crash-{crashes + 1}")
        faults.left = crashes + 1
        try:
            import_on(path)
            break
        except Crash:
            crashes += 1
        faults.left = 1 + 7 * crashes % 40  # and again while it recovers, or begins again
        with suppress(Crash):
            import_on(path)
        faults.left = -1
        assert outcome(path) == expected, f"after a crash at change {crashes}"
        assert outcome(path) == expected, f"at the second start after a crash at {crashes}"
        assert list(path.rglob("*.staged*")) == list(path.glob("*diskqueue*")) == []
    assert crashes > 40


@pytest.mark.e2e
def test_a_write_that_fails_anywhere_stops_the_start_and_loses_nothing(
    example: Path, faults: Faults
) -> None:
    expected = outcome(copy_of(example, "undisturbed"))
    faults.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failures = change = 0
    while faults.left <= 0:  # as long as the import makes so many changes
        change += 1
        path = copy_of(example, f"full-{change}")
        faults.left = change
        try:
            import_on(path)
        except DirectoryError as error:
            assert "No space left on device" in str(error)
            failures += 1
        if faults.left <= 0:
            faults.left = -1
            assert outcome(path) == expected, f"after a failure at change {change}"
    assert failures > 40


def crash_once(example: Path, faults: Faults, *, filled: bool) -> Path:
    """A copy of `example` whose import crashed as soon as the manifest of `t` said this."""
    change = 0
    while True:
        change += 1
        path = copy_of(example, f"crash-{change}")
        faults.left = change
        with pytest.raises(Crash):
            import_on(path)
        faults.left = -1
        manifest = Directory(str(path)).read_manifest("t")
        if manifest and manifest.importing and manifest.importing.filled == filled:
            return path


def test_originals_used_by_another_nsqd_after_a_crash_are_not_lost(
    tmp_path: Path, faults: Faults
) -> None:
    write_queue(tmp_path / "example", "t:a", stored("a1"))
    path = crash_once(tmp_path / "example", faults, filled=True)
    write_queue(path, "t:a", stored("a1", "a2"))
    assert set(bodies(waiting(start(path)["t"], "a"))) == {b"a1", b"a2"}


def test_a_crash_before_the_first_write_costs_no_earlier_message(
    tmp_path: Path, faults: Faults
) -> None:
    """The mark is of a segment with nothing in it: the channel is ahead of its log."""
    example = tmp_path / "example"
    write_queue(example, "t:a", stored("a1"))
    start(example)
    ahead = cursor.encode(DeliveryDelta(0, 100, [(1, 100)], Pendings.of([])), Clocks(0, 0))
    (example / "topics/t/a.cursor").write_bytes(ahead)
    write_queue(example, "t:a", stored("a2"))
    path = crash_once(example, faults, filled=False)
    sizes = {segment.name: segment.stat().st_size for segment in path.rglob("*.log")}
    assert sizes.pop(f"{0:020d}.log") > 0
    assert sizes == {f"{100:020d}.log": 0}
    assert bodies(waiting(start(path)["t"], "a")) == [b"a1", b"a2"]


def test_too_little_space_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_queue(tmp_path, "t:a", stored("a1"))

    class Usage(NamedTuple):
        total: int = 100
        used: int = 90
        free: int = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage())
    with pytest.raises(DirectoryError, match="0 MB needed on the disk, 0 MB free"):
        start(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["t:a.diskqueue.000000.dat", "t:a.diskqueue.meta.dat"]
