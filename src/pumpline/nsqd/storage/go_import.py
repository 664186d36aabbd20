"""Taking over the disk queues that Go nsqd left in the data directory: once, before we listen.

| queue                                    | becomes                                             |
|------------------------------------------|-----------------------------------------------------|
| `<topic>:<channel>` (`;` from Windows)   | messages in the topic's log, finished for all other |
|                                          | channels; the channel is created if need be         |
| `<topic>`                                | messages after those, for all channels; the topic's |
|                                          | backlog if it has none or is paused                 |

Timestamps are kept, ids are new. A message that was delivered before keeps its attempts: those come
first in their channel's part of the log, so that its cursor can have them as messages that came
back while the others are fresh, which costs no memory however many there are.

Topic by topic, so that a crash loses nothing and brings nothing twice:

| step | on disk                                              | after a crash                      |
|------|------------------------------------------------------|------------------------------------|
| 1    | the manifest has the log's mark                      | log cut back to it, begun again    |
| 2    | the log has the messages, new cursors lie beside the | the same                           |
|      | old ones, all of it synced                           |                                    |
| 3    | the manifest says so, and names the files            | 4 and 5 are done                   |
| 4    | the cursors are in place, the files in `imported/`   | 5 is done                          |
| 5    | the manifest has no mark                             |                                    |
"""

import logging
import os
import shutil
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from pumpline.core.messages.batches import FULL_BYTES, Builder
from pumpline.core.messages.deferred import Pending, Pendings
from pumpline.core.messages.delivery import Delivery, DeliveryDelta
from pumpline.core.messages.frame import encode_message
from pumpline.core.messages.spans import length
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.log import cursor
from pumpline.log.directory import DirectoryError, Import, Manifest, TopicMetadata
from pumpline.log.files import sync_paths
from pumpline.log.go_diskqueue import DiskQueue, Record, find_queues, fingerprints, set_aside
from pumpline.log.log import Log
from pumpline.nsqd.options import Options
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.loading import load_cursor, open_stored

ATTEMPTS_MAX = 1_000_000  # messages of one channel whose attempts are kept: they cost memory
PROGRESS_S = 2.0
_MB = 1_000_000

Queues = dict[str | None, list[DiskQueue]]  # of one topic, by channel; None: the topic's own

_LOG = logging.getLogger(__name__)


class ImportedSpan(NamedTuple):
    """A channel's part of the log: first the messages that were delivered before."""

    start: int
    end: int
    attempts: "array[int]"


def import_queues(disk: Disk, options: Options) -> dict[str, Manifest | None]:
    """Take over all disk queues; DirectoryError if that cannot be done completely now. Returns the
    manifests of all topics that it has left alone."""
    importer = Importer(disk, options)
    try:
        importer.run()
        return importer.manifests
    except OSError as error:
        raise DirectoryError(f"failed to import disk queues - {error}") from error


class Importer:
    def __init__(self, disk: Disk, options: Options) -> None:
        self._disk = disk
        self._options = options
        self._directory = disk.directory
        self.manifests: dict[str, Manifest | None] = {}  # as they are on the disk
        self._aside = ""
        self._messages = 0

    def run(self) -> None:
        for topic in self._directory.topic_names():
            manifest = self._directory.read_manifest(topic)
            if manifest is not None and manifest.importing is not None:
                self._resume(topic, manifest, manifest.importing)
            else:
                self.manifests[topic] = manifest
        topics = _by_topic(find_queues(self._directory.path))
        if not topics:
            return
        started_s = time.monotonic()
        queues = [
            queue for by_channel in topics.values() for q in by_channel.values() for queue in q
        ]
        self._check_space(sum(queue.size_bytes for queue in queues))
        entries = {entry.name: entry for entry in self._directory.read_metadata().topics or ()}
        for name in sorted(topics):
            self._import_topic(entries.get(name) or TopicMetadata(name), topics[name])
        _LOG.info(
            "IMPORT: done: %d messages of %d queues in %.1f s; the original files are in %s",
            self._messages,
            len(queues),
            time.monotonic() - started_s,
            self._aside,
        )

    def _check_space(self, need_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._directory.path).free
        if need_bytes > free_bytes:
            raise DirectoryError(
                f"failed to import disk queues - {need_bytes // _MB} MB needed on the disk, "
                f"{free_bytes // _MB} MB free"
            )

    # -- one topic ----------------------------------------------------------------------------

    def _import_topic(self, entry: TopicMetadata, queues: Queues) -> None:
        files = [path for queue in chain(*queues.values()) for path in queue.paths]
        if not any(queue.size_bytes for queue in chain(*queues.values())):
            for queue in chain(*queues.values()):
                _report(queue, 0)
            self._set_aside(files)
            return
        self.manifests.pop(entry.name, None)
        found = self._directory.read_manifest(entry.name)
        stored = open_stored(self._disk, self._options, entry, found)
        manifest, log = stored.manifest, stored.log
        if log.written < log.end:
            log.close()
            raise OSError(f"topic {entry.name} has messages that cannot be written to its log")
        states = {name: each.delivery for name, each in stored.cursors.items()}
        manifest.importing = Import(mark=log.mark(), files=fingerprints(files))
        manifest.clean = None
        self._directory.write_manifest(entry.name, manifest, sync=True)
        try:
            self._fill(entry, manifest, log, states, queues)
            sync_paths(log.take_dirty())
            manifest.clean = log.mark()
            manifest.importing.filled = True
            self._directory.write_manifest(entry.name, manifest, sync=True)
        except OSError:
            with suppress(OSError):  # if this fails too, the next start does it
                self._undo(entry.name, manifest, log, manifest.importing)
            raise
        finally:
            log.close()
        self._complete(entry.name, manifest, manifest.importing)

    def _fill(
        self,
        entry: TopicMetadata,
        manifest: Manifest,
        log: Log,
        states: dict[str, Delivery],
        queues: Queues,
    ) -> None:
        """Write log and staged cursors, and say in the manifest how far channels may read."""
        begin = log.end
        held_back = entry.paused and max(manifest.pumped, log.first) < begin
        importer = QueueImporter(log, self._disk.clocks().wall_ns)
        spans: dict[str, ImportedSpan] = {}
        for channel, parts in queues.items():
            if channel is not None:
                state = states.get(channel) or self._new_state(entry.name, channel, log)
                # What is ready to come back must not overtake what a paused topic holds back.
                room = 0 if held_back else ATTEMPTS_MAX - _fresh_count(state, begin)
                span = importer.add_channel(parts, attempts_max=max(room, 0))
                if span.end > span.start:
                    spans[channel] = span
                    states[channel] = state
        channels_end = log.end
        importer.add_topic(queues.get(None, []))
        self._messages += log.end - begin
        if log.end > begin:
            log.note_disorder(log.end)  # the messages have the times that the other nsqd gave them
        clocks = self._disk.clocks()
        for name, state in states.items():
            span = spans.get(name) or ImportedSpan(channels_end, channels_end, array("H"))
            delta = _delta(state, begin, span, channels_end)
            data = cursor.encode(delta, clocks)
            self._directory.stage_cursor(entry.name, name, data)
        if states and not entry.paused:
            manifest.pumped = log.end
        elif states and not held_back:
            manifest.pumped = channels_end

    def _new_state(self, topic: str, channel: str, log: Log) -> Delivery:
        return load_cursor(self._disk, topic, channel, log).delivery

    # -- the end, and what a crash left -------------------------------------------------------

    def _resume(self, topic: str, manifest: Manifest, importing: Import) -> None:
        if importing.filled:
            self._complete(topic, manifest, importing)
            return
        _LOG.warning("IMPORT: %s: was interrupted, beginning again", topic)
        log = self._disk.open_log(topic, manifest.base_id)
        try:
            self._undo(topic, manifest, log, importing)
        finally:
            log.close()

    def _undo(self, topic: str, manifest: Manifest, log: Log, importing: Import) -> None:
        mark = importing.mark
        kept = [s for s in log.segments if mark is not None and s.first <= mark[0]]
        # A mark may be of a segment that was never written: then there is nothing to cut.
        if mark is None or (kept and kept[-1].first == mark[0] and kept[-1].size_bytes >= mark[1]):
            log.cut_back(mark)
        sync_paths([*(segment.path for segment in log.segments[-1:]), log.directory])
        self._directory.drop_staged(topic)
        manifest.importing = None
        manifest.clean = None
        self._directory.write_manifest(topic, manifest, sync=True)

    def _complete(self, topic: str, manifest: Manifest, importing: Import) -> None:
        self._directory.adopt_staged(topic)
        paths = {name: os.path.join(self._directory.path, name) for name in importing.files}
        found = fingerprints(paths.values())
        # A file that changed since was used by another nsqd: it has to be imported again.
        same = [paths[name] for name, was in importing.files.items() if found.get(name) == was]
        self._set_aside(same)
        manifest.importing = None
        self._directory.write_manifest(topic, manifest, sync=True)

    def _set_aside(self, paths: list[str]) -> None:
        if paths:
            if not self._aside:
                now_s = self._disk.clocks().wall_ns // 1_000_000_000
                date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
                self._aside = self._directory.create_aside(date)
            set_aside(paths, self._aside)


class QueueImporter:
    """Appends the records of queues to a log, and logs its progress."""

    def __init__(self, log: Log, now_ns: int) -> None:
        self._log = log
        self._now_ns = now_ns
        self._builder = Builder(first=log.end, timestamp_ns=now_ns)

    def add_channel(self, queues: list[DiskQueue], *, attempts_max: int) -> ImportedSpan:
        start = self._log.end
        attempts = array("H")
        for queue in queues:
            progress = _Progress(queue, "looked at for earlier deliveries")
            for record in progress.over(queue.records()):
                if record.attempts and len(attempts) < attempts_max:
                    self._add(record)
                    attempts.append(record.attempts)
        taken = len(attempts)
        for queue in queues:
            progress = _Progress(queue, "imported")
            anew = 0
            for record in progress.over(queue.records()):
                if record.attempts:
                    taken -= 1
                    if taken >= 0:
                        continue
                    anew += 1
                self._add(record)
            if anew:
                _LOG.warning("IMPORT: %s: attempts of %d messages not kept", queue.name, anew)
            progress.finish()
        self._flush()
        return ImportedSpan(start, self._log.end, attempts)

    def add_topic(self, queues: list[DiskQueue]) -> None:
        for queue in queues:
            progress = _Progress(queue, "imported")
            for record in progress.over(queue.records()):
                self._add(record)
            progress.finish()
        self._flush()

    def _add(self, record: Record) -> None:
        builder = self._builder
        frame = encode_message(
            timestamp_ns=record.timestamp_ns,
            attempts=1,
            message_id=self._log.base_id + builder.end,
            body=record.body,
        )
        builder.add(frame)
        if len(builder.frames) >= FULL_BYTES:
            self._flush()

    def _flush(self) -> None:
        log = self._log
        if self._builder.ends:
            log.append([self._builder.seal()])
            log.trim(log.end, messages_max=0, bytes_max=0)
            self._builder = Builder(first=log.end, timestamp_ns=self._now_ns)


class _Progress:
    """Counts the records of one queue; a line in the log every few seconds, and one at the end."""

    def __init__(self, queue: DiskQueue, verb: str) -> None:
        self._queue = queue
        self._verb = verb
        self._count = 0
        self._started_s = time.monotonic()

    def over(self, records: Iterator[Record]) -> Iterator[Record]:
        shown_s = self._started_s
        count = 0
        for record in records:
            count += 1
            if not count & 0xFF:
                now_s = time.monotonic()
                if now_s - shown_s >= PROGRESS_S:
                    shown_s = now_s
                    _LOG.info("IMPORT: %s: %d messages %s", self._queue.name, count, self._verb)
            yield record
        self._count = count

    def finish(self) -> None:
        _report(self._queue, self._count)
        elapsed_s = time.monotonic() - self._started_s
        _LOG.info(
            "IMPORT: %s: %d messages imported in %.1f s", self._queue.name, self._count, elapsed_s
        )


def _report(queue: DiskQueue, count: int) -> None:
    """Log the faults of a queue of which `count` messages were found."""
    for note in queue.notes:
        _LOG.warning("IMPORT: %s: %s", queue.name, note)
    for fault in queue.faults.values():
        _LOG.error("IMPORT: %s: %s", queue.name, fault)
    if queue.positions is not None and queue.positions.depth != count:
        _LOG.warning(
            "IMPORT: %s: metadata said %d messages, %d found",
            queue.name,
            queue.positions.depth,
            count,
        )


def _by_topic(queues: list[DiskQueue]) -> dict[str, Queues]:
    """Queues by topic and channel; those with invalid or ephemeral names are left alone."""
    topics: dict[str, Queues] = {}
    for queue in queues:
        topic, separator, rest = queue.name.replace(";", ":").partition(":")
        channel = rest if separator else None
        names = [topic] if channel is None else [topic, channel]
        if any(is_ephemeral(name) or not is_valid_name(name) for name in names):
            _LOG.warning("IMPORT: %s: left alone, no topic or channel to keep", queue.name)
            continue
        topics.setdefault(topic, {}).setdefault(channel, []).append(queue)
    return topics


def _fresh_count(state: Delivery, end: int) -> int:
    """Messages below `end` that the channel has yet to see."""
    return length(state.finished.gaps(state.next, end))


def _delta(state: Delivery, begin: int, span: ImportedSpan, channels_end: int) -> DeliveryDelta:
    """A channel's state once [begin, channels_end) is there, of which `span` is its own."""
    state.skip(begin, span.start)
    state.skip(span.end, channels_end)
    fresh = state.finished.gaps(state.next, span.start)
    snapshot = state.snapshot()
    if not span.attempts:
        return snapshot
    # To come back, a message must lie below `next`; so must all before it, as never delivered.
    never = [Pending(offset, 0, 0) for a, b in fresh for offset in range(a, b)]
    back = [Pending(span.start + n, attempts, 0) for n, attempts in enumerate(span.attempts)]
    return DeliveryDelta(
        snapshot.low,
        span.start + len(span.attempts),
        snapshot.finished,
        Pendings.of([*snapshot.pending, *never, *back]),
    )
