"""Sparing Spark's Python workers a look for garbage that cannot be there."""

import gc
from functools import cache


@cache
def freeze_gc() -> None:
    """Once in a process. Spark's worker looks for garbage after each task, among all modules and
    classes: 20 to 40 ms, as long as decoding 60 MB. What is there by now is not looked at again."""
    gc.freeze()
