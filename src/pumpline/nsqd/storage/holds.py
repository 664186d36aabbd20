"""Writes a topic's holds to disk, in a thread: while one write is under way all others wait, and
share the next. Knows the file (`log.holds`); must not know what a hold is for."""

import asyncio
from collections.abc import Callable

from pumpline.log.holds import StoredHold, write_holds


class HoldsWriter:
    def __init__(
        self, path: str, base_id: int, *, read: Callable[[], tuple[int, list[StoredHold]]]
    ) -> None:
        """`read` gives the holds as they are, and how often they were changed."""
        self._path = path
        self._base_id = base_id
        self._read = read
        self._saved = 0  # the version on disk
        self._saving = asyncio.Lock()

    async def save(self, wanted: int) -> None:
        """Return when version `wanted` or a newer one is on disk; OSError when it cannot be."""
        async with self._saving:
            if self._saved < wanted:
                version, stored = self._read()
                await asyncio.to_thread(write_holds, self._path, self._base_id, stored)
                self._saved = version
