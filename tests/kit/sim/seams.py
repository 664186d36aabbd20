"""Where the simulator takes hold of nsqd: the names of its modules that reach the outside world.

nsqd's code is not changed and knows nothing of this. While `simulated` lasts, the names `os`,
`shutil`, `open`, `time`, `random` and ThreadPoolExecutor, and clocks given as default arguments,
mean the simulated ones in the modules of `pumpline`, wherever a module has them.
"""

import importlib
import inspect
import io
import os
import pkgutil
import random
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import pumpline.log
import pumpline.nsqd
import pumpline.web
from pumpline.log import direct_writes, group_commit
from pumpline.nsqd.queue import tick
from tests.kit.sim.disk import SimDisk, SimOs, SimShutil
from tests.kit.sim.loop import VirtualClock, VirtualThreads

_OPENS_FILES = ("pumpline.log.", "pumpline.nsqd.queue.", "pumpline.nsqd.storage.")
_CLOCKS = ("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns")


class SimTime:
    """In place of the module `time`."""

    gmtime = staticmethod(time.gmtime)
    strftime = staticmethod(time.strftime)

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.monotonic_ns = self.perf_counter_ns = clock.steady_ns
        self.time_ns = clock.wall_ns

    def monotonic(self) -> float:
        return self._clock.steady_ns() / 1e9

    perf_counter = monotonic

    def time(self) -> float:
        return self._clock.wall_ns() / 1e9

    def sleep(self, seconds: float) -> None: ...


class SimRandom:
    """In place of the module `random`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chance, name)


@cache
def _modules() -> list[ModuleType]:
    for package in (pumpline.log, pumpline.nsqd, pumpline.web):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.endswith("auth_servers"):  # whose HTTP client takes long to import
                importlib.import_module(found.name)
    names = ("pumpline.log", "pumpline.nsqd", "pumpline.web")
    return [module for name, module in sys.modules.items() if name.startswith(names)]


@cache
def _defaults() -> list[tuple[dict[str, Any], str, str]]:
    """Clocks that are defaults of arguments: where, under which name, and which clock."""
    found = []
    clocks = {getattr(time, name): name for name in _CLOCKS}
    for module in _modules():
        for each in vars(module).values():
            if inspect.isclass(each) and each.__module__ == module.__name__:
                for method in vars(each).values():
                    defaults = getattr(method, "__kwdefaults__", None) or {}
                    for argument, value in defaults.items():
                        if inspect.isbuiltin(value) and value in clocks:
                            found.append((defaults, argument, clocks[value]))
    return found


DIRECT_LIMITS = (
    (group_commit, "DIRECT_BYTES"),
    (direct_writes, "DIRECT_BYTES"),
    (direct_writes, "SYNCED_DIRECT_BYTES"),
)


@contextmanager
def simulated(
    disk: SimDisk,
    clock: VirtualClock,
    chance: random.Random,
    *,
    channels_at_once: int,
    direct_bytes: int,
) -> Iterator[None]:
    """`channels_at_once`: with more, delivery is coalesced. `direct_bytes`: larger
    batches go straight to their segments."""
    sim_time = SimTime(clock)
    stands_for: dict[int, Any] = {
        id(time): sim_time,
        id(random): SimRandom(chance),
        id(random.randrange): chance.randrange,
        id(time.monotonic): sim_time.monotonic,
        id(ThreadPoolExecutor): VirtualThreads,
    }
    of_files: dict[int, Any] = {id(os): SimOs(disk), id(shutil): SimShutil(disk)}
    undo: list[tuple[dict[str, Any], str, Any]] = []
    missing = object()

    def put(names: dict[str, Any], name: str, value: Any) -> None:
        undo.append((names, name, names.get(name, missing)))
        names[name] = value

    try:
        put(vars(tick), "CHANNELS_AT_ONCE", channels_at_once)
        for module, name in DIRECT_LIMITS:
            put(vars(module), name, min(direct_bytes, vars(module)[name]))
        for module in _modules():
            names = vars(module)
            opens = module.__name__.startswith(_OPENS_FILES)
            for name, value in list(names.items()):
                found = stands_for.get(id(value)) or (of_files.get(id(value)) if opens else None)
                if found is not None:
                    put(names, name, found)
            if opens:
                put(names, "open", lambda path, mode: io.BytesIO(disk.read(path)))
        for defaults, argument, name in _defaults():
            put(defaults, argument, getattr(sim_time, name))
        yield
    finally:
        for names, name, value in reversed(undo):
            if value is missing:
                del names[name]
            else:
                names[name] = value
