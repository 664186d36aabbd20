"""Long work on the event loop, in short pieces: messages do not wait for statistics."""

import asyncio
import time

SLICE_S = 0.005  # of work, after which others get their turn


class Pace:
    """Call `breathe` between pieces of work; it lets others run when it is their turn."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()

    async def breathe(self) -> None:
        if time.perf_counter() - self._since_s > SLICE_S:
            await asyncio.sleep(0)
            self._since_s = time.perf_counter()
