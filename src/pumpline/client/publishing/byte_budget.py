"""A limit in bytes that is waited for, in turn: back-pressure instead of a buffer without end."""

import asyncio
from collections import deque


class Room:
    """Something is let in while less than `bytes_max` is taken, so it can be over by one item."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, count_bytes: int) -> bool:
        if self._waiting or self.taken_bytes >= self.bytes_max:
            return False
        self.taken_bytes += count_bytes
        return True

    async def take(self, count_bytes: int) -> None:
        if self.try_take(count_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was let in and does not come
                self.give(count_bytes)
            raise

    def give(self, count_bytes: int) -> None:
        """Give back what was taken; those who wait are let in as far as it goes."""
        self.taken_bytes -= count_bytes
        while self._waiting and self.taken_bytes < self.bytes_max:
            wanted_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.taken_bytes += wanted_bytes
                turn.set_result(None)
