"""What a closed connection leaves in memory: nothing, and at once.

The collector is off within `Leftovers`, so an object that is part of a cycle stays, and is found.
"""

import asyncio
import gc
from collections import Counter
from typing import Self

from tests.kit.serving import PATIENCE_S

PAUSE_S = 0.01


class Leftovers:
    """Counts objects of these classes that were made within."""

    def __init__(self, *classes: type) -> None:
        self._classes = classes
        self._before: set[int] = set()

    def __enter__(self) -> Self:
        gc.collect()
        gc.disable()
        self._before = {id(each) for each in self._found()}
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()

    async def none_left(self) -> None:
        """Wait until nothing is left; who is still busy has its time."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._names():
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise AssertionError(f"left in memory: {dict(self._names())}") from None

    def _names(self) -> Counter[str]:
        fresh = (each for each in self._found() if id(each) not in self._before)
        return Counter(type(each).__name__ for each in fresh)

    def _found(self) -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, self._classes)]
