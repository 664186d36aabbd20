"""Loading: topics and channels as the data directory has them.

A topic is loaded if it has a directory or nsqd.dat names it; a channel if it has a cursor or
nsqd.dat names it. The rules where files disagree all prefer delivering twice to losing:
- a cursor that is lost or cannot be read starts at the oldest message there is;
- a cursor beyond the end of its log (the log lost unsynced messages to a power failure) keeps its
  offsets: the log goes on after them, so that no new message takes an offset that was finished.
"""

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pumpline.core.messages.delivery import Delivery, restore
from pumpline.core.messages.ids import new_base
from pumpline.core.protocol.frames import ID_BYTES
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.log import cursor
from pumpline.log.cursor import CursorFile
from pumpline.log.directory import Manifest, TopicMetadata
from pumpline.log.holds import HoldsDamaged, StoredHold, read_holds
from pumpline.log.log import Log
from pumpline.log.recovery import first_batch
from pumpline.log.segment import first_of
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.publish_tokens import StoredTokens, load_tokens
from pumpline.nsqd.queue.topic import Topic

if TYPE_CHECKING:
    from pumpline.nsqd.services import Services

_LOG = logging.getLogger(__name__)
_ID_AT = 18


class StoredCursor(NamedTuple):
    """A channel's state as the data directory has it."""

    delivery: Delivery
    sound_bytes: int  # of the file; 0 if it has to be written anew


class Stored(NamedTuple):
    """A topic as the data directory has it."""

    manifest: Manifest
    log: Log
    states: dict[str, StoredCursor]  # by channel
    holds: list[StoredHold]
    tokens: StoredTokens


def load_topics(services: "Services") -> dict[str, Topic]:
    metadata = services.directory.read_metadata()
    named: dict[str, TopicMetadata] = {}
    for entry in metadata.topics or ():
        if is_valid_name(entry.name):
            named[entry.name] = entry
        else:
            _LOG.warning("skipping creation of invalid topic %s", entry.name)
    names = sorted({*named, *services.directory.topic_names()})
    topics = {}
    for name in names:
        if not is_ephemeral(name):
            topics[name] = _load_topic(services, named.get(name) or TopicMetadata(name))
    return topics


def new_log(
    services: "Services", name: str, base_id: int, clean: tuple[int, int, int] | None = None
) -> Log:
    return Log(
        services.directory.topic_path(name),
        base_id=base_id,
        files=services.files,
        offload=services.offload,
        later=services.later,
        segment_bytes_max=services.options.max_bytes_per_file,
        clean=clean,
    )


def _load_topic(services: "Services", entry: TopicMetadata) -> Topic:
    manifest, log, states, holds, tokens = open_stored(services, entry)
    paused = {c.name: c.paused for c in entry.channels or ()}
    for name in paused:
        if not is_valid_name(name):
            _LOG.warning("skipping creation of invalid channel %s", name)
    still = entry.paused or manifest.awaits_channels or not states
    pumped = min(manifest.pumped, log.end) if still else log.end
    pumped = max(pumped, log.first)
    topic = Topic(services, entry.name, log, pumped=pumped, paused=entry.paused)
    topic.holds.restore(holds)
    topic.tokens.restore(tokens)
    topic.clean_mark = manifest.clean
    topic.awaits_channels = manifest.awaits_channels
    if manifest.settings is not None:
        topic.use(manifest.settings)
    for name, state in states.items():
        channel = Channel(topic, name, state.delivery, paused=paused.get(name, False))
        path = services.directory.cursor_path(entry.name, name)
        channel.cursor_file = CursorFile(path, sound_bytes=state.sound_bytes)
        if not state.sound_bytes:
            channel.note_change()
        topic.adopt(channel)
    # A kill may have come before a checkpoint knew of the newest delays.
    for first, end, due_ns in log.take_deferred():
        if end <= topic.pumped:
            for channel in topic.channels.values():
                channel.note_deferred(first, end, due_ns)
    return topic


def open_stored(services: "Services", entry: TopicMetadata) -> Stored:
    """Read what there is of a topic, and create what it lacks."""
    directory = services.directory
    manifest = directory.read_manifest(entry.name)
    if manifest is None:
        base_id = new_base(services.options.node_id, services.tick.wall_ns)
        manifest = Manifest(base_id=base_id)
        directory.create_topic(entry.name, manifest)
        found = _base_in_log(directory.topic_path(entry.name))
        if found is not None:
            manifest.base_id = found
            directory.write_manifest(entry.name, manifest)
    log = new_log(services, entry.name, manifest.base_id, manifest.clean)
    log.sync_also(directory.topics_path)
    named = (channel.name for channel in entry.channels or () if is_valid_name(channel.name))
    states = {
        name: load_delivery(services, entry.name, name, log)
        for name in sorted({*named, *directory.channel_names(entry.name)})
        if not is_ephemeral(name)
    }
    holds = _load_holds(services, entry.name, log)
    tokens = load_tokens(entry.name, log, count_max=services.options.max_publish_tokens)
    known = [state.delivery.high for state in states.values()] + [hold.offset for hold in holds]
    log.skip_to(max(known, default=0))
    return Stored(manifest, log, states, holds, tokens)


def load_delivery(services: "Services", topic: str, name: str, log: Log) -> StoredCursor:
    try:
        data = services.directory.read_cursor(topic, name)
    except FileNotFoundError:
        return StoredCursor(Delivery(log.first), 0)
    journals, used = cursor.decode(data, wall_ahead_ns=services.tick.wall_ahead_ns)
    if used < len(data):
        _LOG.warning(
            "CHANNEL(%s:%s): ignored %d bytes at the end of the cursor",
            topic,
            name,
            len(data) - used,
        )
    if not journals:
        _LOG.error("CHANNEL(%s:%s): cursor unreadable, starting at the oldest message", topic, name)
        return StoredCursor(Delivery(log.first), 0)
    return StoredCursor(restore(journals), used if used == len(data) else 0)


def _load_holds(services: "Services", topic: str, log: Log) -> list[StoredHold]:
    try:
        return read_holds(services.directory.topic_path(topic), log.base_id)
    except HoldsDamaged as error:
        _LOG.error("TOPIC(%s): holds unreadable, to be made anew: %s", topic, error)
        return []


def _base_in_log(path: str) -> int | None:
    """The base of the ids in a log whose manifest is lost, from the first batch that is whole."""
    for name in sorted(os.listdir(path)):
        first = first_of(name)
        if first is None:
            continue
        batch = first_batch(os.path.join(path, name), first)
        if batch is not None:
            with suppress(ValueError):
                return int(bytes(batch.frames[_ID_AT : _ID_AT + ID_BYTES]), 16) - batch.first
    return None
