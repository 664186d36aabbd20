"""Which messages of `.bad` files the logs of a data directory lack.

A message is the same if its id and its publish time are: damage at the end of a log is cut off, and
the next message gets its id. A message that was published again has another id, but a batch of the
log has its publish token (`token_of`).

Reads only, and nsqd may run meanwhile. Messages move from the write-ahead log to the segments, so
the write-ahead log is read first. Memory: about 200 bytes for each message in the `.bad` files.
"""

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.frame import ID_AT, ID_BYTES
from pumpline.core.messages.publish_tokens import digest_of, split_tokens
from pumpline.log.bad_files import BadFile
from pumpline.log.directory import Directory, decode_manifest
from pumpline.log.files import NotAFile, open_file, read_whole
from pumpline.log.recovery import Damage, base_in_log, parse, resync
from pumpline.log.salvage import SalvagedMessage
from pumpline.log.segment import OFFSET_END, SUFFIX, Segment, offsets_in_names
from pumpline.log.unflushed import by_id, read_records
from pumpline.log.wal import number_in

_NEAR = 1 << 32  # offsets: an id so far after the end of a log is of that log
_FRAME_BYTES_MIN = 39  # of a message in a segment
_CHUNK_BYTES = 4 << 20
_MISSING, _HELD, _REPUBLISHED = range(3)


def token_of(message_id: int, timestamp_ns: int) -> str:
    """The publish token with which a message of a .bad file is published again."""
    return f"recover:{message_id:016x}:{timestamp_ns}"


class Counts(NamedTuple):
    found: int
    held: int  # the log has them
    republished: int  # the log has them with another id
    missing: int  # and certain
    doubtful: int  # missing, and perhaps wrong


class TopicMessages:
    """The messages of one topic in .bad files, by id and publish time."""

    def __init__(self) -> None:
        self._added: list[tuple[int, int, bool]] = []
        self._times = array("q")
        self._is_certain = bytearray()
        self._states = bytearray()
        self._tokens: dict[bytes, int] = {}
        self.ids = array("Q")  # in order; an id may be there with several times

    def add(self, message: SalvagedMessage) -> None:
        self._added.append((message.id, message.timestamp_ns, message.is_certain))

    def seal(self) -> None:
        """All are added."""
        self._added.sort()
        for message_id, timestamp_ns, is_certain in self._added:
            if self.ids and (self.ids[-1], self._times[-1]) == (message_id, timestamp_ns):
                self._is_certain[-1] = is_certain  # the same message; a certain copy comes last
                continue
            self.ids.append(message_id)
            self._times.append(timestamp_ns)
            self._is_certain.append(is_certain)
        self._added = []
        self._states = bytearray(len(self.ids))

    def counts(self) -> Counts:
        states = self._states
        pairs = zip(states, self._is_certain, strict=True)
        missing = sum(1 for state, is_certain in pairs if state == _MISSING and is_certain)
        return Counts(
            found=len(states),
            held=states.count(_HELD),
            republished=states.count(_REPUBLISHED),
            missing=missing,
            doubtful=states.count(_MISSING) - missing,
        )

    def times(self) -> tuple[int, int]:
        """The first and the last publish time of a message that is missing; 0 if none is."""
        pairs = zip(self._times, self._states, strict=True)
        found = [time_ns for time_ns, state in pairs if state == _MISSING]
        return (min(found), max(found)) if found else (0, 0)

    def is_missing(self, message: SalvagedMessage) -> bool:
        return self._states[self._index(message)] == _MISSING

    def note_republished(self, message: SalvagedMessage) -> None:
        self._states[self._index(message)] = _REPUBLISHED

    def _index(self, message: SalvagedMessage) -> int:
        index = bisect_left(self.ids, message.id)
        while self._times[index] != message.timestamp_ns:
            index += 1
        return index

    def note_held(self, batch: LogBatch) -> None:
        """The log has this batch."""
        first_id = int(bytes(batch.frames[ID_AT : ID_AT + ID_BYTES]), 16)
        start = bisect_left(self.ids, first_id)
        for index in range(start, bisect_left(self.ids, first_id + batch.count, lo=start)):
            published_ns = batch.published_ns(batch.first + self.ids[index] - first_id)
            if published_ns == self._times[index]:
                self._states[index] = _HELD
        if batch.tokens:
            self.note_tokens(split_tokens(batch.tokens))

    def note_held_one(self, message_id: int, timestamp_ns: int) -> None:
        start = bisect_left(self.ids, message_id)
        for index in range(start, bisect_right(self.ids, message_id, lo=start)):
            if self._times[index] == timestamp_ns:
                self._states[index] = _HELD

    def note_tokens(self, tokens: Iterable[bytes]) -> None:
        """The log has messages with these publish tokens."""
        if not self._tokens:
            pairs = enumerate(zip(self.ids, self._times, strict=True))
            self._tokens = {digest_of(token_of(*each)): index for index, each in pairs}
        for token in tokens:
            index = self._tokens.get(token)
            if index is not None and self._states[index] == _MISSING:
                self._states[index] = _REPUBLISHED


class _TopicLog(NamedTuple):
    base_id: int
    topic: str
    id_end: int  # ids of this log are below


class Missing:
    """Messages of .bad files, by topic."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._logs = _topic_logs(directory)
        self._bases = [log.base_id for log in self._logs]
        self.topics: dict[str, TopicMessages] = {}
        self.deleted = 0  # messages whose topic is not there
        self._oldest_ns = 0  # modification time of the oldest .bad file

    def topic_of(self, file: BadFile, message: SalvagedMessage) -> str:
        """Empty if the data directory has no such topic."""
        return file.topic or self._topic_of_id(message.id)

    def _topic_of_id(self, message_id: int) -> str:
        index = bisect_right(self._bases, message_id) - 1
        if index < 0 or message_id >= self._logs[index].id_end:
            return ""
        return self._logs[index].topic

    def add(self, file: BadFile) -> int:
        """Read a file; returns how many of its bytes belong to no message. OSError if it cannot be
        read."""
        unread_bytes = 0
        for batch in file.batches():
            unread_bytes += batch.unread_bytes
            for message in batch.messages():
                topic = self.topic_of(file, message)
                if topic:
                    self.topics.setdefault(topic, TopicMessages()).add(message)
                else:
                    self.deleted += 1
        written_ns = os.stat(file.path).st_mtime_ns
        self._oldest_ns = min(self._oldest_ns or written_ns, written_ns)
        return unread_bytes

    def compare(self) -> None:
        """All files are added: look for their messages in the logs."""
        for messages in self.topics.values():
            messages.seal()
        for name in sorted(os.listdir(self._directory.path)):
            if number_in(name) is not None:
                self._compare_with_wal(os.path.join(self._directory.path, name))
        for log in self._logs:
            if log.topic in self.topics:
                self._compare_with_log(log, self.topics[log.topic])

    def _compare_with_wal(self, path: str) -> None:
        try:
            records = read_records(path, keep=lambda *_: Damage(path, 0, 0, "")).records
        except FileNotFoundError:
            return  # it is in the segments
        for record in records:
            for message_id, message in by_id(record):
                messages = self.topics.get(self._topic_of_id(message_id))
                if messages is not None:
                    published_ns = int.from_bytes(message.frame[8:16], "big", signed=True)
                    messages.note_held_one(message_id, published_ns)
            if record.tokens:
                for messages in self.topics.values():
                    messages.note_tokens(split_tokens(record.tokens))

    def _compare_with_log(self, log: _TopicLog, messages: TopicMessages) -> None:
        path = self._directory.topic_path(log.topic)
        firsts = offsets_in_names(_names(path), SUFFIX)
        for first, limit in pairwise([*firsts, OFFSET_END]):
            segment = Segment(path, first)
            start = bisect_left(messages.ids, log.base_id + first)
            is_wanted = start < bisect_left(messages.ids, log.base_id + limit)
            try:
                # What was published again is in a segment that was written to since.
                if is_wanted or os.stat(segment.path).st_mtime_ns >= self._oldest_ns:
                    for batch in _batches_of(segment, limit):
                        messages.note_held(batch)
            except FileNotFoundError:
                continue  # retired meanwhile


def _topic_logs(directory: Directory) -> list[_TopicLog]:
    logs = []
    for topic in directory.topic_names():
        path = directory.topic_path(topic)
        base_id = _base_of(directory, topic)
        if base_id is None:
            continue
        end = 0
        for first in offsets_in_names(_names(path), SUFFIX)[-1:]:
            try:
                size_bytes = os.stat(Segment(path, first).path).st_size
            except FileNotFoundError:
                size_bytes = 0
            end = first + size_bytes // _FRAME_BYTES_MIN
        logs.append(_TopicLog(base_id, topic, base_id + end + _NEAR))
    return sorted(logs)


def _base_of(directory: Directory, topic: str) -> int | None:
    try:
        manifest = decode_manifest(read_whole(directory.manifest_path(topic)))
        return manifest.base_id if manifest else base_in_log(directory.topic_path(topic))
    except (FileNotFoundError, NotAFile):
        return base_in_log(directory.topic_path(topic))


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []  # the topic was deleted meanwhile


def _batches_of(segment: Segment, limit: int) -> Iterator[LogBatch]:
    """The whole batches of a segment, also after damage."""
    fd = open_file(segment.path)
    try:
        position, end, want = 0, segment.first, _CHUNK_BYTES
        while (size_bytes := os.fstat(fd).st_size) > position:
            data = memoryview(os.pread(fd, min(want, size_bytes - position), position))
            batches, used, fault = parse(data, limit)
            yield from batches
            end = batches[-1].end if batches else end
            position += used
            want = _CHUNK_BYTES
            if 0 < fault <= size_bytes - position:
                want = max(want, fault)
            elif fault:
                resume = resync(fd, position, size_bytes, offset=end, limit=limit)
                if resume is None:
                    return
                position = resume
    finally:
        os.close(fd)
