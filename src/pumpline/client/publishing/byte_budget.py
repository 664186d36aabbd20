"""A limit in bytes. Callers wait for their turn when it is used up, so memory stays bounded."""

import asyncio
from collections import deque


class ByteBudget:
    """Lets a caller in while less than `bytes_max` is taken, so it may be exceeded by one item."""

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
            if not turn.cancelled():  # let in and cancelled in the same iteration of the loop
                self.give_back(count_bytes)
            raise

    def give_back(self, count_bytes: int) -> None:
        """Give back what was taken, and let in those who wait for it."""
        self.taken_bytes -= count_bytes
        while self._waiting and self.taken_bytes < self.bytes_max:
            wanted_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.taken_bytes += wanted_bytes
                turn.set_result(None)
