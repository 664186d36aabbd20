"""Writes a topic's holds to disk, in a thread: while one write is under way all others wait, and
share the next. What cannot be written is tried again every second until it is. Knows the file
(`log.holds`); must not know what a hold is for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pumpline.log.holds import StoredHold, write_holds
from pumpline.log.scheduling import Later

_RETRY_S = 1.0


class HoldsWriter:
    def __init__(
        self,
        path: str,
        base_id: int,
        *,
        read: Callable[[], tuple[int, list[StoredHold]]],
        written: Callable[[list[StoredHold]], None],
        is_over: Callable[[], bool],
        later: Later,
    ) -> None:
        """`read` gives the holds as they are, and how often they were changed; `written` is told
        which are on disk; `is_over` says whether the topic has ended."""
        self._path = path
        self._base_id = base_id
        self._read = read
        self._written = written
        self._is_over = is_over
        self._later = later
        self._saved = 0  # the version on disk
        self._saving = asyncio.Lock()
        self._retry: asyncio.Task[None] | None = None
        self._retries = False  # a timer runs

    async def save(self, wanted: int) -> None:
        """Return when version `wanted` or a newer one is on disk; OSError when it cannot be."""
        async with self._saving:
            if self._saved < wanted:
                version, stored = self._read()
                try:
                    await asyncio.to_thread(write_holds, self._path, self._base_id, stored)
                except OSError:
                    self._try_later()
                    raise
                self._saved = version
                self._written(stored)

    def _try_later(self) -> None:
        if not self._retries and not self._is_over():
            self._retries = True
            self._later(_RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._retries = False
        if not self._is_over():
            self._retry = asyncio.get_running_loop().create_task(self._save_again())

    async def _save_again(self) -> None:
        with suppress(OSError):
            await self.save(self._saved + 1)
