"""Copies the data directory of an nsqd that may run, so that the copy is as good as after a kill.

Files are copied in an order in which later ones never lack what earlier ones speak of:

| step | files                                     | what nsqd may do meanwhile                   |
|------|-------------------------------------------|----------------------------------------------|
| 1    | manifests, holds, publish tokens, cursors | publish, finish: the copies do not have it   |
| 2    | write-ahead log                           | flush: then the messages are in the segments |
| 3    | segments, from the newest to the oldest   | append; retire the oldest, all finished      |

A message that was acknowledged before step 1 is in the write-ahead log of step 2, or was flushed
before and is in the segments of step 3; nsqd delivers a message that is in both once. A cursor
knows only messages that were acknowledged before it was copied. What was half written at the end of
a file is cut off at the next start, as after a kill. `tokens` is copied before `tokens.old`: when
one becomes the other meanwhile, it is there twice, and not missing.

A topic that is deleted or made meanwhile is left out. nsqd.dat of the copy names only the channels
that it has. The copy says that power was lost: nsqd then gives new messages ids that are far from
those which messages of the original may have got since.

Knows the files of a data directory; must not know where backups are kept.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pumpline.log import publish_tokens, run_mark, wal
from pumpline.log.cursor import SUFFIX as CURSOR
from pumpline.log.directory import (
    FORMAT,
    METADATA,
    ChannelMetadata,
    Directory,
    Manifest,
    Metadata,
    TopicMetadata,
    channel_names,
    decode_manifest,
)
from pumpline.log.holds import FILE as HOLDS
from pumpline.log.segment import SUFFIX as SEGMENT

GAP = ".gap"
LOSSES = 24  # 100 million offsets (`log.run_mark`): more than are published before a restore
LISTINGS_MAX = 100

_PIECE_BYTES = 8 << 20


class Source(msgspec.Struct, frozen=True):
    """A segment of nsqd, as it was when it was copied."""

    inode: int
    size_bytes: int
    changed_ns: int
    base_id: int  # of its log


class Copied(msgspec.Struct, kw_only=True):
    """What a copy has."""

    topics: int = 0
    copied_bytes: int = 0
    linked_bytes: int = 0
    segments: dict[str, Source] = {}  # by path in the copy


class CopyError(Exception):
    """The directory cannot be copied; the text says why."""


class Copy:
    """One copy of a data directory. `previous` is an earlier one, and what it has: segments that
    have not changed since are linked to it."""

    def __init__(self, source: Path, target: Path, previous: tuple[Path, Copied] | None) -> None:
        self._directory = Directory(str(source))
        self._source = source
        self._target = target
        self._previous_path = previous[0] if previous else None
        self._previous: Mapping[str, Source] = previous[1].segments if previous else {}
        self._bases: dict[str, int] = {}  # of the topics that are copied
        self.copied = Copied()

    def run(self) -> Copied:
        """OSError if a file cannot be read or written; CopyError if this is no data directory."""
        self._check()
        named = {each.name: each for each in self._directory.read_metadata().topics or ()}
        topics = sorted({*self._directory.topic_names()})
        os.makedirs(self._target / "topics")
        for topic in topics:
            self._copy_state(topic, named.get(topic) or TopicMetadata(topic))
        self._copy_wal()
        for topic, base_id in list(self._bases.items()):
            self._copy_log(topic, base_id)
            if self._base_id(topic) != base_id:  # it was deleted, and perhaps made again
                self._leave_out(topic)
        self._write_rest()
        self.copied.topics = len(self._bases)
        return self.copied

    def _check(self) -> None:
        try:
            text = (self._source / "format").read_text()
        except FileNotFoundError:
            raise CopyError(f"{self._source} is no data directory of an nsqd") from None
        if text.strip() != str(FORMAT):
            raise CopyError(f"{self._source} has another format: {text.strip()[:20]!r}")

    # -- the three steps ----------------------------------------------------------------------

    def _copy_state(self, topic: str, entry: TopicMetadata) -> None:
        path = Path(self._directory.topic_path(topic))
        target = self._target_of(topic)
        try:
            manifest = Path(self._directory.manifest_path(topic)).read_bytes()
            names = os.listdir(path)
        except FileNotFoundError:  # it is being made or deleted
            return
        decoded = decode_manifest(manifest)
        if decoded is None:
            raise CopyError(f"{self._directory.manifest_path(topic)} is damaged")
        self._bases[topic] = decoded.base_id
        os.makedirs(target)
        self._write(target / "topic.json", manifest)
        # A listing may miss a file that is being replaced: those that nsqd.dat names are tried.
        channels = {*channel_names(names), *(each.name for each in entry.channels or ())}
        cursors = [name + CURSOR for name in sorted(channels)]
        for name in (HOLDS, publish_tokens.FILE, publish_tokens.OLD_FILE, *cursors):
            self._copy_small(path / name, target / name)

    def _copy_wal(self) -> None:
        names = [name for name in os.listdir(self._source) if wal.number_in(name) is not None]
        for name in sorted(names):
            self._copy_small(self._source / name, self._target / name)

    def _copy_log(self, topic: str, base_id: int) -> None:
        """All segments from some offset on: the oldest may be retired meanwhile, never others."""
        path = Path(self._directory.topic_path(topic))
        target = self._target_of(topic)
        for _ in range(LISTINGS_MAX):
            try:
                names = sorted(os.listdir(path), reverse=True)
            except FileNotFoundError:
                return
            segments = [name for name in names if name.endswith(SEGMENT)]
            is_first = True
            for name in segments:
                if not self._copy_segment(path / name, target / name, base_id):
                    break
                is_first = False
            if not is_first or not segments:
                for name in names:
                    if name.endswith(GAP):
                        self._write(target / name, b"")
                return
        raise CopyError(f"topic {topic}: its segments go faster than they can be copied")

    # -- files --------------------------------------------------------------------------------

    def _copy_small(self, source: Path, target: Path) -> None:
        """Nothing if it is not there."""
        try:
            data = source.read_bytes()
        except FileNotFoundError:
            return
        self._write(target, data)

    def _write(self, target: Path, data: bytes) -> None:
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.copied.copied_bytes += len(data)

    def _copy_segment(self, source: Path, target: Path, base_id: int) -> bool:
        """Returns whether it was there."""
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(fd)
            found = Source(status.st_ino, status.st_size, status.st_mtime_ns, base_id)
            name = str(target.relative_to(self._target))
            if self._previous.get(name) == found and self._link(name, target):
                self.copied.linked_bytes += found.size_bytes
            else:
                _copy_bytes(fd, target, found.size_bytes)
                self.copied.copied_bytes += found.size_bytes
            self.copied.segments[name] = found
        finally:
            os.close(fd)
        return True

    def _link(self, name: str, target: Path) -> bool:
        """Use the segment of the earlier copy; False if there is none, or no link can be made."""
        assert self._previous_path is not None
        earlier = self._previous_path / name
        try:
            if earlier.stat().st_size != self._previous[name].size_bytes:
                return False
            os.link(earlier, target)
        except OSError:
            return False
        return True

    # -- what is written anew -----------------------------------------------------------------

    def _leave_out(self, topic: str) -> None:
        target = self._target_of(topic)
        for path in target.iterdir():
            self.copied.segments.pop(str(path.relative_to(self._target)), None)
            path.unlink()
        target.rmdir()
        del self._bases[topic]

    def _write_rest(self) -> None:
        metadata = self._directory.read_metadata()
        kept = []
        for topic in metadata.topics or ():
            if topic.name in self._bases:
                has = set(channel_names(os.listdir(self._target_of(topic.name))))
                channels = [
                    ChannelMetadata(each.name, each.paused)
                    for each in topic.channels or ()
                    if each.name in has
                ]
                kept.append(TopicMetadata(topic.name, topic.paused, channels or None))
        shown = msgspec.json.encode(Metadata(kept, metadata.version))
        self._write(self._target / METADATA, shown)
        self._write(self._target / "format", b"%d\n" % FORMAT)
        mark = {"boot_id": "", "is_synced": False, "losses": LOSSES}
        self._write(self._target / run_mark.FILE, msgspec.json.encode(mark))
        for topic_name in self._bases:
            _sync_directory(self._target_of(topic_name))
        _sync_directory(self._target / "topics")
        _sync_directory(self._target)

    def _base_id(self, topic: str) -> int | None:
        try:
            data = Path(self._directory.manifest_path(topic)).read_bytes()
        except FileNotFoundError:
            return None
        manifest: Manifest | None = decode_manifest(data)
        return manifest.base_id if manifest else None

    def _target_of(self, topic: str) -> Path:
        return self._target / "topics" / Path(self._directory.topic_path(topic)).name


def _copy_bytes(fd: int, target: Path, size_bytes: int) -> None:
    """Of a file that may grow meanwhile: as much as it had."""
    with target.open("xb", buffering=0) as file:
        at = 0
        while at < size_bytes:
            piece = os.pread(fd, min(_PIECE_BYTES, size_bytes - at), at)
            if not piece:  # it was cut back after a failed write
                break
            file.write(piece)
            at += len(piece)
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
