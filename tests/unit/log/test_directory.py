"""The data directory: one owner, names that file systems do not like, damaged files."""

import errno
import json
import os
import zlib
from pathlib import Path

import pytest

from pumpline.log.directory import (
    ChannelMetadata,
    Directory,
    DirectoryError,
    Manifest,
    Metadata,
    TopicMetadata,
    channel_names,
)

ODD_NAMES = [".", "..", "...", "a.b", "-", "_", "topic.json", "x.cursor", "x.tmp", "0" * 20]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path))


# -- what a start does ----------------------------------------------------------------------------


def test_a_start_takes_out_the_trash(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "trash" / "1").mkdir(parents=True)
    (tmp_path / "trash" / "1" / "file").write_bytes(b"x")
    directory.prepare()
    assert list((tmp_path / "trash").iterdir()) == []


# -- metadata -------------------------------------------------------------------------------------


def test_without_nsqd_dat_there_is_nothing(directory: Directory) -> None:
    assert directory.read_metadata() == Metadata()


def test_metadata_is_written_as_nsq_writes_it(tmp_path: Path, directory: Directory) -> None:
    channels = [ChannelMetadata(name="c", paused=True)]
    topics = [TopicMetadata(name="t", channels=channels), TopicMetadata(name="u", paused=True)]
    metadata = Metadata(topics=topics, version="1.3.0")
    directory.write_metadata(metadata)
    assert (tmp_path / "nsqd.dat").read_bytes() == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
        b'{"name":"u","paused":true,"channels":null}],"version":"1.3.0"}'
    )
    assert directory.read_metadata() == metadata
    assert os.listdir(tmp_path) == ["nsqd.dat"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"topics":[{"name":"\xff"}]}',
        b'{"topics":3}',
        b'{"topics":[{}]}',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_damaged_metadata_is_an_error_with_a_reason(
    tmp_path: Path, directory: Directory, data: bytes
) -> None:
    (tmp_path / "nsqd.dat").write_bytes(data)
    with pytest.raises(DirectoryError, match=r"failed to parse metadata in .*nsqd.dat - "):
        directory.read_metadata()


# -- topics ---------------------------------------------------------------------------------------


def test_without_topics_there_are_no_names(directory: Directory) -> None:
    assert directory.topic_names() == []


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_topic_may_have_any_valid_name(tmp_path: Path, directory: Directory, name: str) -> None:
    manifest = Manifest(base_id=5, pumped=7, clean=(1, 2, 3))
    directory.create_topic(name, manifest)
    assert Path(directory.topic_path(name)).parent == tmp_path / "topics"
    assert directory.topic_names() == [name]
    assert directory.read_manifest(name) == manifest


def test_what_is_no_topic_is_not_listed(tmp_path: Path, directory: Directory) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    (tmp_path / "topics" / "not a name").mkdir()
    (tmp_path / "topics" / ("x" * 65)).mkdir()
    assert directory.topic_names() == ["t"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"\0" * 50,
        b'{"base_id":"x"}',
        b'{"base_id":1,"clean":["\xff"]}',
        b"[" * 9,
    ],
)
def test_a_damaged_manifest_is_none(tmp_path: Path, directory: Directory, data: bytes) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    (tmp_path / "topics" / "t" / "topic.json").write_bytes(data)
    assert directory.read_manifest("t") is None
    directory.write_manifest("t", Manifest(base_id=9))
    assert directory.read_manifest("t") == Manifest(base_id=9)


def test_a_manifest_of_a_newer_kind_is_read_for_what_it_has(
    tmp_path: Path, directory: Directory
) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    path = tmp_path / "topics" / "t" / "topic.json"
    data = json.dumps({"base_id": 4, "something": {"new": True}})
    path.write_text(f'{{"crc":{zlib.crc32(data.encode())},"manifest":{data}}}')
    assert directory.read_manifest("t") == Manifest(base_id=4)


def test_a_topic_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        with pytest.raises(OSError, match="No space left"):
            directory.create_topic("t", Manifest(base_id=1))
    assert list((tmp_path / "topics").iterdir()) == []


@pytest.mark.parametrize("name", ["topic.json", "00000000000000000000.log", "c.cursor"])
def test_only_a_directory_with_nothing_in_it_is_an_unfinished_topic(
    directory: Directory, name: str
) -> None:
    path = Path(directory.topic_path("t"))
    assert not directory.drop_unfinished("t")
    path.mkdir(parents=True)
    (path / "topic.json.tmp").touch()
    (path / name).touch()
    assert not directory.drop_unfinished("t")
    (path / name).unlink()
    assert directory.drop_unfinished("t")
    assert not path.exists()


def test_a_removed_topic_is_out_of_sight_at_once_and_can_be_created_again(
    tmp_path: Path, directory: Directory
) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    removed = directory.remove_topic("t")
    assert directory.topic_names() == []
    directory.create_topic("t", Manifest(base_id=2))
    again = directory.remove_topic("t")
    assert removed != again
    assert len(os.listdir(tmp_path / "trash")) == 2
    directory.shred(removed)
    directory.shred(again)
    directory.shred(again)
    assert os.listdir(tmp_path / "trash") == []


# -- channels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_channel_may_have_any_valid_name(directory: Directory, name: str) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    Path(directory.cursor_path("t", name)).write_bytes(b"cursor")
    assert channel_names(directory.file_names("t")) == [name]
    assert directory.read_cursor("t", name) == b"cursor"
    directory.remove_cursor("t", name)
    directory.remove_cursor("t", name)
    assert channel_names(directory.file_names("t")) == []
    assert os.path.getsize(directory.cursor_path("t", name) + ".deleted") == 0
    assert directory.clean_up("t", directory.file_names("t")) == {name}
    directory.write_metadata(Metadata(), directory.take_deleted())
    assert directory.clean_up("t", directory.file_names("t")) == set()


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path, directory: Directory) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    topic = tmp_path / "topics" / "t"
    for name in ("c.cursor", "c.cursor.tmp", "topic.json.tmp", "holds.json.tmp"):
        (topic / name).write_bytes(b"")
    (tmp_path / "nsqd.dat.tmp").write_bytes(b"")
    (tmp_path / ".probe").write_bytes(b"")
    (tmp_path / "orders.diskqueue.meta.dat.7.tmp").write_bytes(b"")  # of Go nsqd
    directory.prepare()
    assert directory.clean_up("t", directory.file_names("t")) == set()
    assert sorted(path.name for path in topic.iterdir()) == ["c.cursor", "topic.json"]
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert left == ["format", "orders.diskqueue.meta.dat.7.tmp"]


def test_only_cursors_of_channels_are_listed(tmp_path: Path, directory: Directory) -> None:
    directory.create_topic("t", Manifest(base_id=1))
    for name in ("b.cursor", "a.cursor", "c.cursor.tmp", "d#ephemeral.cursor", " .cursor", "e"):
        (tmp_path / "topics" / "t" / name).write_bytes(b"")
    (tmp_path / "topics" / "t" / ".cursor").write_bytes(b"")
    assert channel_names(directory.file_names("t")) == ["a", "b"]


def test_the_free_part_of_the_disk_is_a_share(directory: Directory) -> None:
    assert 0 <= directory.free_share() <= 1
