"""The data directory: the metadata file, and where each topic keeps its log.

```
format                                the number of this format
running                               there unless nsqd was stopped in order (log.run_mark)
wal-<number>                          messages on the way to their segments (log.wal)
nsqd.dat                              topics, channels and pauses, as NSQ writes it
topics/<topic>/                       one directory a topic
topics/<topic>/topic.json             manifest: base of the message ids, position of the pump,
                                      settings
topics/<topic>/<first offset>.log     segments (log.segment)
topics/<topic>/<start>-<end>.gap      offsets that the log has left out (log.gaps)
topics/<topic>/<channel>.cursor       channels (log.cursor)
topics/<topic>/<channel>.cursor.deleted   a channel that nsqd.dat may still name, and is deleted
topics/<topic>/tokens, tokens.old     publish tokens (log.publish_tokens)
imported/<date>/                      disk queues of Go nsqd that were imported (log.go_diskqueue)
trash/                                deleted topics on their way out
```
A topic or channel exists if its directory or cursor does, so neither is lost by a crash before
nsqd.dat is written; nsqd.dat adds what was paused, and topics that came from another nsqd.
A deleted channel's cursor is renamed first and unlinked once nsqd.dat does not name the channel any
more: with neither file the channel would come back at the oldest message.
"""

import logging
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from random import randrange

import msgspec

from pumpline.core.messages.crc import crc32
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.core.text.settings import TopicSettings
from pumpline.log import cursor, run_mark
from pumpline.log.files import (
    TEMPORARY,
    read_or_set_aside,
    read_whole,
    remove_leftover,
    sync_file,
    write_whole,
)

_LOG = logging.getLogger(__name__)

FORMAT = 2  # raised by every change that another version would misread
METADATA = "nsqd.dat"
_FORMAT_NAME = "format"
PROBE = ".probe"  # written to see whether the disk takes anything
_MANIFEST = "topic.json"
_STAGED = ".staged"
_DELETED = ".deleted"


class ChannelMetadata(msgspec.Struct):
    name: str
    paused: bool = False


class TopicMetadata(msgspec.Struct):
    name: str
    paused: bool = False
    channels: list[ChannelMetadata] | None = None


class Metadata(msgspec.Struct):
    """nsqd.dat."""

    topics: list[TopicMetadata] | None = None
    version: str = ""


class Import(msgspec.Struct):
    """An import of disk queues that is not complete (see `nsqd.storage.go_import`)."""

    mark: tuple[int, int, int] | None  # of the log, before
    files: dict[str, tuple[int, int]]  # the originals by name: size, modification time in ns
    filled: bool = False  # the log and the staged cursors are complete


class Manifest(msgspec.Struct):
    """topic.json: what of a topic's state is not in the log or a cursor."""

    base_id: int
    pumped: int = 0  # while paused or without channels: what channels have been given so far
    clean: tuple[int, int, int] | None = None  # the log's mark at a clean stop
    importing: Import | None = None
    settings: TopicSettings | None = None
    awaits_channels: bool = False  # those it has on other nodes are not made yet


class _SealedManifest(msgspec.Struct):
    """What is in the file: a wrong digit in a manifest could lose messages."""

    crc: int
    manifest: msgspec.Raw


class DirectoryError(Exception):
    """The data directory cannot be used; the text says why."""


class Directory:
    def __init__(self, path: str) -> None:
        self.path = path
        self._topics = os.path.join(path, "topics")
        self._trash = os.path.join(path, "trash")
        self.losses = 0  # see `run_mark`
        self._deleted: set[str] = set()  # cursors to be unlinked after the next write of nsqd.dat

    def prepare(self) -> None:
        """Remove what a deletion or a kill left, and make the room for topics. DirectoryError, and
        nothing is touched, if the directory has another format."""
        self._check_format()
        if os.path.islink(self._topics) and not os.path.isdir(self._topics):
            raise DirectoryError(f"{self._topics} is a symbolic link to nothing: put it back")
        for name in (METADATA, _FORMAT_NAME, run_mark.FILE):
            remove_leftover(os.path.join(self.path, name + TEMPORARY))
        remove_leftover(os.path.join(self.path, PROBE))
        with suppress(OSError):  # trash is a directory, unless somebody has replaced it
            os.unlink(self._trash)
        shutil.rmtree(self._trash, ignore_errors=True)  # it would wait at a named pipe
        with suppress(OSError):  # a full disk: the first topic will say so
            os.makedirs(self._topics, exist_ok=True)
            os.makedirs(self._trash, exist_ok=True)  # now: later there may be no room for it
            sync_file(self.path)

    def _check_format(self) -> None:
        path = os.path.join(self.path, _FORMAT_NAME)
        try:
            text = read_whole(path)
        except FileNotFoundError:
            with suppress(OSError):  # a full disk: the next start writes it
                write_whole(path, b"%d\n" % FORMAT, sync=True)
            return
        if not text.strip().isdigit() or not int(text):
            raise DirectoryError(
                f"{path} does not hold the number of a format, but {text[:40]!r}: if this version "
                "wrote the data directory, remove the file"
            )
        if int(text) != FORMAT:
            raise DirectoryError(
                f"the data directory {self.path} has format {int(text)}, and this version reads "
                f"format {FORMAT} alone: use the version that wrote it"
            )

    # -- metadata -----------------------------------------------------------------------------

    def read_metadata(self) -> Metadata:
        """What nsqd.dat says; an empty one if there is none. DirectoryError if it is damaged."""
        path = os.path.join(self.path, METADATA)
        try:
            return msgspec.json.decode(read_whole(path), type=Metadata)
        except FileNotFoundError:
            return Metadata()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DirectoryError(
                f"failed to parse metadata in {path} - {error}: put back a copy, or remove the "
                "file to start with nothing paused"
            ) from error

    def write_metadata(self, metadata: Metadata, deleted: Iterable[str] = ()) -> None:
        """Replace nsqd.dat, durably, and unlink cursors whose channels it does not name any more;
        for a thread."""
        path = os.path.join(self.path, METADATA)
        write_whole(path, msgspec.json.encode(metadata), sync=True)
        for cursor_path in deleted:
            remove_leftover(cursor_path)  # not there if its topic was deleted, too

    def take_deleted(self) -> set[str]:
        """Cursors of channels that were deleted since the last call, for `write_metadata`."""
        deleted, self._deleted = self._deleted, set()
        return deleted

    def keep_deleted(self, deleted: set[str]) -> None:
        """nsqd.dat could not be written: the next write is to unlink these."""
        self._deleted |= deleted

    # -- topics -------------------------------------------------------------------------------

    @property
    def topics_path(self) -> str:
        return self._topics

    def topic_names(self) -> list[str]:
        try:
            with os.scandir(self._topics) as entries:
                names = [_topic_of(entry.name) for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(filter(is_valid_name, names))

    def topic_path(self, topic: str) -> str:
        # `.` and `..` are legal names of topics and the only ones a file system cannot take.
        name = topic.replace(".", "%2E") if topic in (".", "..") else topic
        return os.path.join(self._topics, name)

    def create_topic(self, topic: str, manifest: Manifest) -> None:
        """Make a topic's directory and manifest; an OSError leaves none that was not there."""
        path = self.topic_path(topic)
        existed = os.path.isdir(path)
        os.makedirs(path, exist_ok=True)
        try:
            self.write_manifest(topic, manifest)
        except OSError:
            if not existed:
                with suppress(OSError):
                    os.rmdir(path)
            raise

    def drop_unfinished(self, topic: str) -> bool:
        """Remove a topic's directory if the topic was never made: there is nothing in it. Returns
        whether that was so."""
        path = self.topic_path(topic)
        try:
            if any(not name.endswith(TEMPORARY) for name in os.listdir(path)):
                return False
            shutil.rmtree(path)
        except FileNotFoundError:
            return False
        return True

    def read_manifest(self, topic: str) -> Manifest | None:
        """None if the topic has no (valid) manifest."""
        path = self.manifest_path(topic)
        try:
            manifest = decode_manifest(read_or_set_aside(path))
        except FileNotFoundError:
            return None
        if manifest is None:
            _LOG.error("FILES: %s is damaged: the topic's settings are lost", path)
        return manifest

    def manifest_path(self, topic: str) -> str:
        return os.path.join(self.topic_path(topic), _MANIFEST)

    def founding_paths(self, topic: str) -> list[str]:
        """What an fsync has to cover so that a loss of power leaves the topic and its manifest."""
        path = self.topic_path(topic)
        return [os.path.join(path, _MANIFEST), path, self.topics_path]

    def sync_manifest(self, topic: str) -> None:
        """Make what was written last durable; for a thread."""
        with suppress(FileNotFoundError):  # the topic was deleted meanwhile
            sync_file(os.path.join(self.topic_path(topic), _MANIFEST))
            sync_file(self.topic_path(topic))

    def write_manifest(self, topic: str, manifest: Manifest, *, sync: bool = False) -> None:
        path = os.path.join(self.topic_path(topic), _MANIFEST)
        data = msgspec.json.encode(manifest)
        sealed = _SealedManifest(crc=crc32(data), manifest=msgspec.Raw(data))
        write_whole(path, msgspec.json.encode(sealed), sync=sync)
        if sync:
            sync_file(self.topic_path(topic))

    def remove_topic(self, topic: str) -> str:
        """Put a topic out of sight at once; what is returned is for `shred`."""
        os.makedirs(self._trash, exist_ok=True)
        target = os.path.join(self._trash, f"{randrange(1 << 63)}")
        os.rename(self.topic_path(topic), target)
        return target

    def shred(self, path: str) -> None:
        """Delete the files of a removed topic; for a thread."""
        shutil.rmtree(path, ignore_errors=True)

    def empty_trash(self) -> None:
        """Delete the files of all removed topics now; for a thread."""
        with suppress(OSError):
            for name in os.listdir(self._trash):
                self.shred(os.path.join(self._trash, name))

    # -- channels -----------------------------------------------------------------------------

    def file_names(self, topic: str) -> list[str]:
        """The files of a topic. A start lists them once: 25 us for each of 10,000 topics."""
        return os.listdir(self.topic_path(topic))

    def cursor_path(self, topic: str, channel: str) -> str:
        return os.path.join(self.topic_path(topic), channel + cursor.SUFFIX)

    def read_cursor(self, topic: str, channel: str) -> bytes:
        return read_or_set_aside(self.cursor_path(topic, channel))

    def remove_cursor(self, topic: str, channel: str) -> None:
        """Delete a channel, whatever nsqd.dat says of it until it is written."""
        path = self.cursor_path(topic, channel)
        with suppress(FileNotFoundError):
            os.replace(path, path + _DELETED)
            self._deleted.add(path + _DELETED)
            with suppress(OSError):
                os.truncate(path + _DELETED, 0)  # a full disk needs the room for nsqd.dat

    def clean_up(self, topic: str, names: list[str]) -> set[str]:
        """Remove those of a topic's files that a kill left half written. Returns the channels of
        which nothing in nsqd.dat counts: they were deleted since it was written, and perhaps made
        again."""
        suffix = cursor.SUFFIX + _DELETED
        path = self.topic_path(topic)
        for name in names:
            if name.endswith(TEMPORARY):
                remove_leftover(os.path.join(path, name))
        deleted = [name for name in names if name.endswith(suffix)]
        self._deleted.update(os.path.join(path, name) for name in deleted)
        return {name.removesuffix(suffix) for name in deleted}

    def disk_bytes(self) -> tuple[int, int]:
        """What is free of the file system, and all of it."""
        usage = os.statvfs(self.path)
        return usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize

    def free_share(self) -> float:
        """The free part of the file system, 0 to 1."""
        free, total = self.disk_bytes()
        return free / total if total else 1.0

    # -- imports ------------------------------------------------------------------------------

    def stage_cursor(self, topic: str, channel: str, data: bytes) -> None:
        """Write a cursor, durably, that counts once `adopt_staged` is called."""
        write_whole(self.cursor_path(topic, channel) + _STAGED, data, sync=True)

    def adopt_staged(self, topic: str) -> None:
        """Put staged cursors in place, durably."""
        for path in self._staged(topic):
            os.replace(path, path.removesuffix(_STAGED))
        sync_file(self.topic_path(topic))

    def drop_staged(self, topic: str) -> None:
        for path in (*self._staged(topic), *self._staged(topic, _STAGED + ".tmp")):
            os.unlink(path)

    def create_aside(self, name: str) -> str:
        """A new directory in `imported`, of that name or with a number added; in `imported-2` if
        something else has that name."""
        parents = (
            os.path.join(self.path, f"imported-{n}" if n > 1 else "imported") for n in count(1)
        )
        parent = next(each for each in parents if os.path.isdir(each) or not os.path.lexists(each))
        os.makedirs(parent, exist_ok=True)
        path = os.path.join(parent, name)
        number = 1
        while os.path.exists(path):
            number += 1
            path = os.path.join(parent, f"{name}-{number}")
        os.mkdir(path)
        sync_file(parent)
        sync_file(self.path)
        return path

    def _staged(self, topic: str, suffix: str = _STAGED) -> list[str]:
        path = self.topic_path(topic)
        return [os.path.join(path, name) for name in os.listdir(path) if name.endswith(suffix)]


def decode_manifest(data: bytes) -> Manifest | None:
    """None if it is damaged."""
    try:
        sealed = msgspec.json.decode(data, type=_SealedManifest)
        if crc32(sealed.manifest) == sealed.crc:
            return msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return None


def channel_names(files: list[str]) -> list[str]:
    """The channels that have a cursor among these files."""
    # Not splitext, which takes the dots of a channel named `..` for those of a hidden file.
    suffix = cursor.SUFFIX
    names = (name.removesuffix(suffix) for name in files if name.endswith(suffix))
    return sorted(n for n in names if is_valid_name(n) and not is_ephemeral(n))


def _topic_of(name: str) -> str:
    return name.replace("%2E", ".") if name in ("%2E", "%2E%2E") else name
