"""Puts the pipelines on the stand-ins: what Spark's columns compute is computed on dicts.

Nothing else of the pipelines is replaced but HTTP, the clock and threads. While `simulated` lasts,
the module `time` means the simulated one wherever a module of `pyspark_nsq` has it.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pyspark.sql.types import StructType

from pumpline.cluster import node as cluster_node
from pyspark_nsq.errors import Unreachable
from pyspark_nsq.nodes.workers import NodeWorkers
from pyspark_nsq.pipelines import archive
from pyspark_nsq.pipelines.json_events import events, shape
from pyspark_nsq.pipelines.json_events.events import FAULT, KEY, NEWS
from pyspark_nsq.pipelines.json_events.fitting import LEARN
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.table import seen_keys
from pyspark_nsq.reading import task
from tests.kit.sim.pipelines.cluster import Cluster, SimHttp
from tests.kit.sim.pipelines.engine import SimStreamFrame
from tests.kit.sim.pipelines.frames import Row, SimFrame

HOUR_S = 3600.0
KEY_FILES_MAX = 4  # so that keys are put together often


class SimTime:
    """In place of the module `time`."""

    def __init__(self, cluster: Cluster) -> None:
        self._clock = cluster.clock

    def time(self) -> float:
        return self._clock.now_s

    monotonic = time

    def time_ns(self) -> int:
        return self._clock.now_ns()

    def sleep(self, seconds: float) -> None:
        self._clock.now_s += seconds


def _at_once(
    workers: NodeWorkers, addresses: Iterable[str], work: Callable[[str], Any], **_: object
) -> dict[str, Any]:
    """In place of threads: one node after the other is asked."""

    def outcome(address: str) -> Any:
        try:
            return work(address)
        except Unreachable as error:
            return error

    return {address: outcome(address) for address in addresses}


def _keys_of(rows: SimFrame) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        return [
            {"topic": row["topic"], KEY: row[KEY], "published": row["timestamp"]}
            for row in found
            if row[KEY] is not None
        ]

    return rows.map(change)


def _recent(keys: SimFrame, watermark: str) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        newest: dict[str, float] = {}
        for key in found:
            newest[key["topic"]] = max(newest.get(key["topic"], 0.0), key["published"])
        return [key for key in found if key["published"] > newest[key["topic"]] - HOUR_S]

    assert watermark == "1 hour"
    return keys.map(change)


def _unseen(rows: SimFrame, known: SimFrame) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        seen = {(key["topic"], key[KEY]) for key in known.rows()}
        fresh: list[Row] = []
        for row in sorted(found, key=lambda row: (row["timestamp"], row["node"], row["offset"])):
            key = (row["topic"], row[KEY])
            if row[KEY] is None or key not in seen:
                fresh.append(row)
                seen.add(key)
        return fresh

    return rows.map(change, known)


def _placed(messages: SimFrame) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        day = {"date": "2027-01-15"}
        return [{**row, **day, "hour": int(row["timestamp"] // 60 % 3)} for row in found]

    return messages.map(change)


def _checked(rows: SimFrame, schema: StructType, *, unknown: str, key: Any = None) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        columns = events.look([row["body"] for row in found], schema, unknown=unknown, key=key)
        told = zip(found, *columns, strict=True)
        return [{**row, FAULT: fault, NEWS: news, KEY: own} for row, fault, news, own in told]

    return rows.map(change)


def _grown(rows: SimFrame, schema: StructType, *, whole: Any) -> StructType:
    """As `events.grown`, of frames."""
    found = [row[NEWS] for row in rows.rows() if row[NEWS] is not None]
    if not found:
        return schema
    known = shape.shape_of(schema, LEARN)
    columns = shape.count(known)
    for news in found:
        columns = shape.absorb(known, json.loads(news), columns=columns)
    return shape.schema_of(known, whole)


def _parsed(rows: SimFrame, schema: StructType) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        return [{**row, "event": None if row[FAULT] else json.loads(row["body"])} for row in found]

    return rows.map(change).drop(NEWS)


def _events(both: SimFrame) -> SimFrame:
    return both.map(lambda rows: [row for row in rows if row[FAULT] is None]).drop(FAULT)


def _others(both: SimFrame) -> SimFrame:
    def change(found: list[Row]) -> list[Row]:
        return [{**row, "reason": row[FAULT]} for row in found if row[FAULT] is not None]

    return both.map(change).drop(FAULT).drop("event").drop(KEY)


FRAMES = {
    (seen_keys, "keys_of"): _keys_of,
    (seen_keys, "recent"): _recent,
    (seen_keys, "unseen"): _unseen,
    (archive, "placed"): _placed,
    (events, "checked"): _checked,
    (events, "grown"): _grown,
    (events, "parsed"): _parsed,
    (events, "events"): _events,
    (events, "others"): _others,
    (command, "stream"): SimStreamFrame,
    (task, "freeze_gc"): lambda: None,
}


@contextmanager
def simulated_frames() -> Iterator[None]:
    with ExitStack() as stack:
        for (module, name), instead in FRAMES.items():
            stack.enter_context(patch.object(module, name, instead))
        yield


@contextmanager
def simulated(cluster: Cluster, step: Callable[[], None]) -> Iterator[None]:
    """`step` is called with each request, where a kill may come."""

    class Http(SimHttp):
        pass

    Http.cluster, Http.step = cluster, staticmethod(step)  # type: ignore[assignment]
    with ExitStack() as stack:
        stack.enter_context(simulated_frames())
        stack.enter_context(patch.object(cluster_node, "HttpClientConnection", Http))
        stack.enter_context(patch.object(NodeWorkers, "at_once", _at_once))
        stack.enter_context(patch.object(seen_keys, "FILES_MAX", KEY_FILES_MAX))
        for name, module in list(sys.modules.items()):
            if name.startswith("pyspark_nsq.") and getattr(module, "time", None) is time:
                stack.enter_context(patch.object(module, "time", SimTime(cluster)))
        log = logging.getLogger("pyspark_nsq")
        before = log.level
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(before)
