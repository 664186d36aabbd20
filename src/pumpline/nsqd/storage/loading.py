"""Loading: topics and channels as the data directory has them, as plain records.

`queue.topics` makes topics of them; this module knows files, and must not know what a topic does.

A topic is loaded if it has a directory or nsqd.dat names it; a channel if it has a cursor or
nsqd.dat names it, unless it was deleted after nsqd.dat was written. The rules where files disagree
all prefer delivering twice to losing:
- a cursor that is lost or cannot be read starts at the oldest message there is;
- a cursor below the start of its log begins there: segments were deleted after its last checkpoint;
- a cursor beyond the end of its log (the log lost unsynced messages to a power failure) keeps its
  offsets: the log goes on after them, so that no new message takes an offset that was finished. To
  all channels they are finished. As cursors may be lost with them, each log leaves out further
  offsets before its next message (`log.run_mark`).
"""

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

from pumpline.core.messages.delivery import Delivery, restore
from pumpline.core.messages.ids import BASE_SEED_BYTES, new_base
from pumpline.core.messages.spans import Span
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.log import cursor
from pumpline.log.directory import Manifest, TopicMetadata, channel_names
from pumpline.log.files import sync_paths
from pumpline.log.holds import FILE as HOLDS_FILE
from pumpline.log.holds import HoldsDamaged, StoredHold, base_of_holds, read_holds
from pumpline.log.log import Log
from pumpline.log.recovery import base_in_log
from pumpline.log.run_mark import SKIPPED
from pumpline.nsqd.options import Options
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.publish_tokens import StoredPublishTokens, load_publish_tokens

_LOG = logging.getLogger(__name__)


class StoredCursor(NamedTuple):
    """A channel's state as the data directory has it."""

    delivery: Delivery
    sound_bytes: int  # of the file; 0 if it has to be written anew


class StoredTopic(NamedTuple):
    """A topic as the data directory has it."""

    entry: TopicMetadata  # what nsqd.dat says
    manifest: Manifest
    has_manifest: bool  # on disk
    log: Log
    is_in_wal: bool  # the write-ahead log has messages of it
    cursors: dict[str, StoredCursor]  # by channel
    holds: list[StoredHold]
    tokens: StoredPublishTokens


def stored_topics(
    disk: Disk, options: Options, manifests: dict[str, Manifest | None]
) -> Iterator[StoredTopic]:
    """All topics in the data directory, in the order of their names. `manifests`: those that were
    read before."""
    named: dict[str, TopicMetadata] = {}
    for entry in disk.directory.read_metadata().topics or ():
        if is_valid_name(entry.name):
            named[entry.name] = entry
        else:
            _LOG.warning("skipping creation of invalid topic %s", entry.name)
    all_flushed = True
    logs: list[Log] = []
    for name in sorted({*named, *disk.directory.topic_names()}):
        if is_ephemeral(name) or (name not in named and disk.directory.drop_unfinished(name)):
            continue
        found = manifests[name] if name in manifests else disk.directory.read_manifest(name)
        stored = open_stored(disk, options, named.get(name) or TopicMetadata(name), found)
        all_flushed = all_flushed and stored.log.written == stored.log.end
        if disk.fsyncs.group_commit and stored.is_in_wal:
            logs.append(stored.log)
        yield stored
    if all_flushed and _synced(disk, logs):
        disk.wal.forget_unflushed()


def _synced(disk: Disk, logs: list[Log]) -> bool:
    """Sync logs that got messages from the write-ahead log; return whether they are."""
    for log in logs:
        paths = log.take_dirty()
        try:
            sync_paths(paths)
        except OSError as error:
            log.sync_failed(paths)
            disk.health.failed(error, "what came from the write-ahead log")
            return False
        log.synced = log.written
        log.syncing.begin_again()  # from here on, the segments alone have it
    return True


def open_stored(
    disk: Disk, options: Options, entry: TopicMetadata, found: Manifest | None
) -> StoredTopic:
    """Read what there is of a topic beside its manifest, and create what it lacks."""
    directory = disk.directory
    manifest, is_written = (found, True) if found else _new_manifest(disk, entry.name)
    names = directory.file_names(entry.name)
    log = disk.open_log(entry.name, manifest.base_id, manifest.clean, names)
    log.sync_also(directory.topics_path)
    if manifest.clean is None:
        log.founding = directory.founding_paths(entry.name)
    disk.wal.unflushed.repair(log)
    _take_unflushed(disk, entry.name, log)
    entry = _without_deleted(entry, directory.clean_up(entry.name, names))
    named = (channel.name for channel in entry.channels or () if is_valid_name(channel.name))
    cursors = {
        name: load_cursor(disk, entry.name, name, log)
        for name in sorted({*named, *channel_names(names)})
        if not is_ephemeral(name)
    }
    holds = _load_holds(disk, entry.name, log) if HOLDS_FILE in names else []
    tokens = load_publish_tokens(entry.name, log, names, count_max=options.max_publish_tokens)
    known = [state.delivery.high for state in cursors.values()] + [hold.offset for hold in holds]
    lost = log.end, max(known, default=0)
    if lost[0] < lost[1]:
        log.skip_to(lost[1])
        cursors = {name: _without(state, lost) for name, state in cursors.items()}
    if log.end:
        log.offsets_to_skip = disk.directory.losses * SKIPPED
    is_in_wal = disk.wal.unflushed.has_any_of(log)
    return StoredTopic(entry, manifest, is_written, log, is_in_wal, cursors, holds, tokens)


def _take_unflushed(disk: Disk, topic: str, log: Log) -> None:
    """Flush what the write-ahead log has of a topic, and a kill kept from its segments. What cannot
    be flushed stays in memory: a full disk must not keep consumers from draining it."""
    offset = disk.wal.unflushed.next_offset(log)
    if offset is None:
        return
    log.skip_to(offset)
    batches = disk.wal.unflushed.take(log)
    if not batches:
        return
    log.accept(batches)
    log.advance(batches[-1].end)
    for batch in batches:
        log.recovered.note(batch)
    try:
        log.flush()
    except OSError as error:
        disk.health.failed(error, f"topic {topic}, from the write-ahead log")
    count = sum(batch.count for batch in batches)
    _LOG.info("TOPIC(%s): %d messages came from the write-ahead log", topic, count)


def _without_deleted(entry: TopicMetadata, deleted: set[str]) -> TopicMetadata:
    """What nsqd.dat says but for channels that were deleted after it was written."""
    kept = [channel for channel in entry.channels or () if channel.name not in deleted]
    return TopicMetadata(name=entry.name, paused=entry.paused, channels=kept or None)


def _new_manifest(disk: Disk, topic: str) -> tuple[Manifest, bool]:
    """The manifest of a topic that has none, which need not have a directory either; and whether it
    could be written."""
    path = disk.directory.topic_path(topic)
    os.makedirs(path, exist_ok=True)
    base_id = base_in_log(path)
    if base_id is None:  # there are no messages; holds are synced, and the manifest was not
        base_id = base_of_holds(path)
    manifest = Manifest(new_base(os.urandom(BASE_SEED_BYTES)) if base_id is None else base_id)
    try:
        disk.directory.write_manifest(topic, manifest)
    except OSError as error:
        # A full disk must not keep consumers from draining it.
        disk.health.failed(error, f"manifest of topic {topic}")
        return manifest, False
    return manifest, True


def load_cursor(disk: Disk, topic: str, name: str, log: Log) -> StoredCursor:
    try:
        data = disk.directory.read_cursor(topic, name)
    except FileNotFoundError:
        return StoredCursor(restore([], [(0, log.first), *log.gaps]), 0)
    deltas, used = cursor.decode(data, disk.clocks())
    if used < len(data):
        _LOG.warning(
            "CHANNEL(%s:%s): ignored %d bytes at the end of the cursor",
            topic,
            name,
            len(data) - used,
        )
    if not deltas:
        _LOG.error("CHANNEL(%s:%s): cursor unreadable, starting at the oldest message", topic, name)
        return StoredCursor(restore([], [(0, log.first), *log.gaps]), 0)
    low = max(delta.low for delta in deltas)
    if low < log.first:
        _LOG.warning(
            "CHANNEL(%s:%s): the cursor is at %d, and the log begins at %d: what is between was "
            "finished after the last checkpoint, or is lost",
            topic,
            name,
            low,
            log.first,
        )
    delivery = restore(deltas, [(0, log.first), *log.gaps])
    return StoredCursor(delivery, used if used == len(data) else 0)


def _without(state: StoredCursor, lost: Span) -> StoredCursor:
    """A channel's state without offsets that are not in the log; to be written."""
    return StoredCursor(restore([state.delivery.snapshot()], [lost]), 0)


def _load_holds(disk: Disk, topic: str, log: Log) -> list[StoredHold]:
    try:
        return read_holds(disk.directory.topic_path(topic), log.base_id)
    except HoldsDamaged as error:
        _LOG.error("TOPIC(%s): holds unreadable, to be made anew: %s", topic, error)
        return []
