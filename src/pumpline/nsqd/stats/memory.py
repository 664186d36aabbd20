"""What /stats and statsd say of memory, under the names Go's runtime has for it.

| field                | here                                                                  |
|----------------------|-----------------------------------------------------------------------|
| heap_objects         | blocks that Python's allocator has given out                          |
| heap_in_use_bytes    | memory of the process that is resident (RSS)                          |
| heap_idle_bytes      | 0: Python does not say what it holds in reserve                       |
| heap_released_bytes  | 0: nor what it gave back                                              |
| gc_pause_usec_<p>    | percentiles of how long the last 256 collections took                 |
| next_gc_bytes        | 0: Python collects by number of objects, not by size                  |
| gc_total_runs        | collections of all generations since the start                        |
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from pumpline.web.process_memory import resident_bytes

PAUSES_KEPT = 256

_NS_PER_US = 1000


class MemoryStats(msgspec.Struct, kw_only=True, frozen=True):
    heap_objects: int
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int
    heap_released_bytes: int = 0
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int = 0
    gc_total_runs: int


class Memory:
    """Times garbage collections from `watch` to `close`; tells the rest when asked."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=PAUSES_KEPT)
        self._started_ns = 0

    def watch(self) -> None:
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def stats(self) -> MemoryStats:
        pauses_ns = sorted(self._pauses_ns)
        return MemoryStats(
            heap_objects=sys.getallocatedblocks(),
            heap_in_use_bytes=resident_bytes(),
            gc_pause_usec_100=_percentile(pauses_ns, 100) // _NS_PER_US,
            gc_pause_usec_99=_percentile(pauses_ns, 99) // _NS_PER_US,
            gc_pause_usec_95=_percentile(pauses_ns, 95) // _NS_PER_US,
            gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
        )

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_ns = time.perf_counter_ns()
        else:
            self._pauses_ns.append(time.perf_counter_ns() - self._started_ns)


def _percentile(sorted_values: Sequence[int], percent: int) -> int:
    if not sorted_values:
        return 0
    index = (percent * len(sorted_values) + 50) // 100
    return sorted_values[min(index, len(sorted_values) - 1)]
