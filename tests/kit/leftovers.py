"""What a closed connection leaves in memory: nothing, and at once.

The collector is off within `Leftovers`, so an object that is part of a cycle stays, and is found:
in the youngest generation, which has all that was made since. The rest of pytest's heap is not
looked at.
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
        self._collections: list[int] = []

    def __enter__(self) -> Self:
        gc.collect()
        gc.disable()
        self._collections = _collections()
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
        assert _collections() == self._collections, "a collection made young objects old"

    def _names(self) -> Counter[str]:
        young = gc.get_objects(generation=0)
        return Counter(type(each).__name__ for each in young if isinstance(each, self._classes))


def _collections() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]
