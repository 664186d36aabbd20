"""Keeps nsqd.dat up to date: writes in a thread, one at a time, many changes with one write."""

import asyncio
import logging
from collections.abc import Callable

from pumpline.core.text.names import is_ephemeral
from pumpline.log.directory import Metadata
from pumpline.nsqd.storage.disk import Disk

_LOG = logging.getLogger(__name__)
_SETTLE_S = 0.1  # a burst of new topics is written once, and many topics less often:
_SETTLE_PER_TOPIC_S = 0.0001  # directories and cursors are there before, so nothing is at risk
_RETRY_S = 1.0


class MetadataWriter:
    def __init__(
        self, disk: Disk, *, describe: Callable[[], Metadata], count: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._count = count
        self._describe = describe
        self._scheduled = False
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """The topic, or that channel of it, came or went."""
        if not is_ephemeral(channel or topic):
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._disk.later(_SETTLE_S + _SETTLE_PER_TOPIC_S * self._count(), self._begin)

    async def persist(self) -> None:
        """Write nsqd.dat now and return when it is written; OSError when it cannot be."""
        async with self._lock:
            if not self._is_closed:
                await self._write()

    async def close(self) -> None:
        """Write for the last time: the directory may belong to another nsqd afterwards."""
        async with self._lock:
            self._is_closed = True
            await self._write()

    async def _write(self) -> None:
        directory = self._disk.directory
        deleted = directory.take_deleted()
        try:
            await asyncio.to_thread(directory.write_metadata, self._describe(), deleted)
        except BaseException:
            directory.keep_deleted(deleted)
            raise

    def _begin(self) -> None:
        self._scheduled = False
        task = asyncio.get_running_loop().create_task(self._persist_or_retry())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _persist_or_retry(self) -> None:
        try:
            await self.persist()
        except OSError as error:
            _LOG.error("failed to persist metadata - %s", error)
            self._scheduled = True
            self._disk.later(_RETRY_S, self._begin)
