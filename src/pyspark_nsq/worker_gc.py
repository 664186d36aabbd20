"""Keeps garbage collection in Spark's Python workers short."""

import gc
from functools import cache


@cache
def freeze_gc() -> None:
    """Exclude all objects made so far from garbage collection, once in a process.

    Spark's worker runs a full collection after each task, over all modules and classes: 20 to
    40 ms, as long as decoding 60 MB takes.
    """
    gc.freeze()
