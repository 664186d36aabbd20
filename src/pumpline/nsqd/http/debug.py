"""Looking into the running process over HTTP: what of NSQ's /debug makes sense in Python.

| path                              | here                                                     |
|-----------------------------------|----------------------------------------------------------|
| GET /debug/pprof/                 | an index                                                 |
| GET /debug/pprof/cmdline          | the command line, separated by NUL                       |
| GET /debug/pprof/profile?seconds= | where CPU time goes, in the folded form that flame graph |
|                                   | tools read; 30 s unless told or the client leaves, one   |
|                                   | at a time                                                |
| GET /debug/pprof/heap             | memory, collections, and objects by type                 |
| GET /debug/pprof/goroutine        | the stacks of all threads and tasks                      |
| GET, POST /debug/pprof/<others>   | 404: Go's alone                                          |
| PUT /debug/setblockrate?rate=     | checked, no effect                                       |
| POST /debug/freememory            | collects garbage and gives memory back to the system     |
"""

import asyncio
import ctypes
import gc
import io
import re
import sys
import threading
import traceback
from collections import Counter
from contextlib import suppress

import msgspec

from pumpline.nsqd.http.profile import Profile
from pumpline.nsqd.stats.memory import Memory
from pumpline.web.pprof import PprofEndpoints
from pumpline.web.replies import HttpError, Reply, plain_reply
from pumpline.web.server import Request
from pumpline.web.yielding import Pace

PROFILE_DEFAULT_S = 30.0
PROFILE_MAX_S = 300.0

_TYPES_SHOWN = 50
_OBJECTS_AT_ONCE = 20_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_PAGES = ("cmdline", "goroutine", "heap", "profile?seconds=10")


class DebugEndpoints(PprofEndpoints):
    def __init__(self, memory: Memory) -> None:
        super().__init__(*_PAGES)
        self._memory = memory
        self._profiling = False

    async def profile(self, request: Request) -> Reply:
        seconds = _seconds(request.query().get("seconds"))
        if self._profiling:
            return plain_reply("a profile is being taken already\n", status=500)
        if threading.current_thread() is not threading.main_thread():
            return plain_reply("only a main thread can be profiled\n", status=500)
        self._profiling = True
        try:
            with Profile() as profile:
                await request.sleep(seconds)
        finally:
            self._profiling = False
        return plain_reply(profile.text())

    async def heap(self, request: Request) -> Reply:
        figures = msgspec.to_builtins(self._memory.stats())
        lines = [f"{name} {value}" for name, value in figures.items()]
        lines.append(f"frozen_objects {gc.get_freeze_count()}")
        for number, generation in enumerate(gc.get_stats()):
            lines.append(f"generation_{number} {generation}")
        lines.append("")
        counts = await _objects_by_type()
        lines += [f"{count:>10} {name}" for name, count in counts.most_common(_TYPES_SHOWN)]
        return plain_reply("\n".join(lines) + "\n")

    async def goroutine(self, request: Request) -> Reply:
        text = io.StringIO()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            text.write(f"thread {names.get(ident, ident)}:\n")
            traceback.print_stack(frame, file=text)
        pace = Pace()
        for task in asyncio.all_tasks():
            text.write("\n")
            task.print_stack(file=text)
            await pace.breathe()
        return plain_reply(text.getvalue())

    async def set_block_rate(self, request: Request) -> Reply:
        rate = request.query().get("rate", "")
        if not _INTEGER.fullmatch(rate):
            cause = f'strconv.Atoi: parsing "{rate}": invalid syntax'
            return plain_reply(f"invalid block rate : {cause}", status=400)
        return plain_reply("")

    async def free_memory(self, request: Request) -> Reply:
        gc.collect()
        await asyncio.to_thread(_trim_heap)
        return plain_reply("")


def _seconds(text: str | None) -> float:
    if not text:
        return PROFILE_DEFAULT_S
    if not _INTEGER.fullmatch(text) or not 0 < int(text) <= PROFILE_MAX_S:
        raise HttpError(400, "INVALID_SECONDS")
    return float(text)


async def _objects_by_type() -> Counter[str]:
    """How many objects the collector knows of each type; of many, counted in pieces."""
    objects = gc.get_objects()
    pace = Pace()
    counts: Counter[type] = Counter()
    for start in range(0, len(objects), _OBJECTS_AT_ONCE):
        counts.update(map(type, objects[start : start + _OBJECTS_AT_ONCE]))
        await pace.breathe()
    return Counter({f"{t.__module__}.{t.__qualname__}": n for t, n in counts.items()})


def _trim_heap() -> None:
    """Give free memory at the top of the C heap back, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
