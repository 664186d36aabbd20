"""The broker: topics, connections and discovery put together, for start, stop and readiness.

Servers are around it (`nsqd.server`), topics and the disk below it (`nsqd.queue`, `nsqd.storage`).
"""

import asyncio
import logging
from collections.abc import Iterable

from pumpline.log.files import sync_paths
from pumpline.log.log import Log
from pumpline.log.run_mark import end_run
from pumpline.nsqd.discovery.lookupds import Lookups
from pumpline.nsqd.draining import Draining
from pumpline.nsqd.options import Options
from pumpline.nsqd.protocol.connections import Connections
from pumpline.nsqd.queue.retention import Retention
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topics import Topics
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.metadata import MetadataWriter

SYNCED_TOGETHER = 200  # files, by one of the threads
PROGRESS_S = 2.0  # between two lines of a stop that takes long

_LOG = logging.getLogger(__name__)


class Broker:
    def __init__(self, options: Options, tick: Tick, disk: Disk) -> None:
        self.options = options
        self.tick = tick
        self.disk = disk
        self.loop = asyncio.get_running_loop()
        self.topics = Topics(options, tick, disk)
        self.retention = Retention(self.topics)
        self.connections = Connections(self.topics, self.loop)
        self.started_at_s = tick.wall_ns // 1_000_000_000
        self.metadata = MetadataWriter(
            disk, describe=self.topics.describe, count=lambda: len(self.topics)
        )
        self.serving = False  # the listeners accept clients
        self.draining = Draining(options, self.topics, self.connections)
        self.lookups = Lookups(options, self.topics)
        self.topics.has_lookupds = lambda: bool(self.lookups.lookupds)
        self.topics.discover = self.lookups.discover
        self.topics.observers += (self.lookups, self.metadata)

    def unready(self) -> str | None:
        """Why clients had better go elsewhere, if they had."""
        if self.draining.active:
            return "draining"
        return self.disk.health.error if self.serving else "starting"

    async def close(self) -> None:
        """Everything to disk; connections and listeners are closed by now."""
        self.topics.group_commit.stop()
        is_flushed = self.disk.flusher.flush_all()
        topics = self.topics.values()
        for topic in topics:
            for channel in topic.channels.values():
                channel.close()
        self.disk.checkpoints.write_all_now()
        try:
            await self.metadata.close()
        except OSError as error:
            # Logs and cursors are in their files; what is missing is found again on start.
            _LOG.error("failed to persist metadata - %s", error)
        await self._sync(topics)
        self.topics.group_commit.close()
        synced = [topic.close() for topic in topics]
        if is_flushed and all(synced):
            self.disk.wal.remove(all_files=True)
            end_run(self.disk.directory.path)
        self.disk.files.close()

    async def _sync(self, topics: Iterable[Topic]) -> None:
        """Sync all logs. One that cannot be is not marked as closed cleanly: the next start checks
        and syncs it."""
        dirty = {
            topic: set(topic.log.syncing.take_all_dirty())
            for topic in topics
            if isinstance(topic.log, Log)
        }
        failed = await _sync_all(sorted(set().union(*dirty.values())))
        for topic, paths in dirty.items():
            if paths & failed:
                assert isinstance(topic.log, Log)
                topic.log.sync_failed(sorted(paths))


async def _sync_all(paths: list[str]) -> set[str]:
    """Sync files and directories, some at the same time: after a kill that is two for each topic.
    Returns those that could not be."""
    groups = [paths[at : at + SYNCED_TOGETHER] for at in range(0, len(paths), SYNCED_TOGETHER)]
    tasks = [asyncio.create_task(asyncio.to_thread(_unsyncable, group)) for group in groups]
    waiting = set(tasks)
    while waiting:
        _, waiting = await asyncio.wait(waiting, timeout=PROGRESS_S)
        if waiting:
            at_most = len(waiting) * SYNCED_TOGETHER
            _LOG.info("NSQ: syncing logs, at most %d of %d files to go", at_most, len(paths))
    return set().union(*(task.result() for task in tasks))


def _unsyncable(paths: list[str]) -> set[str]:
    """Sync files and directories; returns those that could not be. For a thread."""
    failed = set()
    for path in paths:
        try:
            sync_paths([path])
        except OSError as error:
            failed.add(path)
            _LOG.error("failed to sync %s - %s", path, error)
    return failed
