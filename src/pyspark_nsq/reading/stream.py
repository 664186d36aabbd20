"""Stream reads. The positions are in Spark's checkpoint; this finds what is new and reads it.

Spark makes one reader for a query. For each batch it asks how far it could read (`latestOffset`)
and what is between two positions (`partitions`), and reports what is done (`commit`). A new log is
first added to the positions where its reading begins, without rows; the next batch reads its first
rows. So the rows of a batch depend on the checkpoint only, and a batch that is repeated after a
crash is the same batch.

A node that was away when the stream began is read from the time of the beginning, unless the stream
begins with the oldest messages. A stream runs on without a node that is away, and a node that is
late delays one batch by PATIENCE_S at most. A query of Trigger.AvailableNow, which ends, fails at
its end if a node of the checkpoint or of the options is away: its end means that all is read.

`commit` only moves the hold forward, and Spark never commits the last batch: only how long nodes
kept the rows may depend on it. Spark may never call `stop`.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_nsq.errors import DataLoss, NodeRefused, NsqError, Unreachable
from pyspark_nsq.nodes.absence import absent, left_out_nodes, require_complete
from pyspark_nsq.nodes.bounds import complete_survey, gone_back, offsets_at, others_at
from pyspark_nsq.nodes.nodes import PATIENCE_S, LogState, Nodes, Survey
from pyspark_nsq.nodes.positions import (
    Key,
    Position,
    Positions,
    from_json,
    limited,
    others_of,
    rows_between,
    to_json,
)
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.plan import LogRange, RangePartition, split, without_gaps
from pyspark_nsq.reading.task import read_ranges

IDLE_S = 0.05  # between two surveys: Spark would ask every 10 ms
NODE_POLL_S = 0.25  # while waiting for a node that a batch needs

_LOG = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._nodes: Nodes | None = None  # made on first use, as Spark pickles the reader before
        self._survey = Survey()
        self._surveyed_s = 0.0
        self._target: Positions | None = None  # of Trigger.AvailableNow
        self._latest: Positions | None = None
        self._initial: Positions | None = None
        self._others_ns: int | None = None  # where logs begin that are found later; None: at first
        self._warned: set[str] = set()  # addresses of nodes that are left out
        self._triggered_s: float | None = None  # when minOffsetsPerTrigger last let a batch begin
        self._planned: Positions = {}  # the end of the newest batch
        self._held: set[tuple[Key, str]] = set()
        self._committed: dict[Key, int] = {}
        self._known: set[tuple[str, str, str]] = set()  # topic, log, start: not gone back

    def initialOffset(self) -> dict[str, Any]:
        nodes = self._connected()
        ends_soon = self._target is not None
        began_ns = time.time_ns()
        self._survey = complete_survey(nodes, self._options, waits=not ends_soon)
        offsets = offsets_at(self._options.starting, self._survey, nodes, self._options)
        positions = {
            key: Position(state.log, offsets[key], state.row_bytes, state.now_ns)
            for key, state in self._survey.logs.items()
        }
        self._hold(positions, starting=True)
        self._initial = positions
        self._others_ns = others_at(self._options.starting, self._survey, began_ns)
        return to_json(positions, self._others_ns)

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.trigger_rows_max
        bytes_max = self._options.trigger_bytes_max
        return ReadMaxBytes(bytes_max) if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._look(patience_s=None)
        self._target = {key: _end_of(state) for key, state in self._survey.logs.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        positions = from_json(start)
        self._others_ns = others_of(start)
        if self._target is None:
            self._look()
        reachable = self._reachable(positions)
        self._hold({**reachable, **positions})
        away = absent(self._survey, reachable, self._options)
        # Without those that are away: nobody knows where their logs end (`progress`).
        self._latest = {key: place for key, place in reachable.items() if key not in away}
        end = self._limited(positions, reachable, limit)
        if self._target is not None and end == positions:  # the query ends now
            require_complete(self._survey, self._options, positions)
        return to_json(end, self._others_ns)

    def _limited(self, start: Positions, reachable: Positions, limit: ReadLimit) -> Positions:
        """Where the batch from `start` ends. Spark names one limit, and the options may have more;
        none is for Trigger.Once, which reads everything in one batch."""
        if isinstance(limit, ReadAllAvailable):
            return reachable
        if self._target is None and self._waits_for_rows(
            sum(rows_between(start, reachable).values())
        ):
            return start
        return limited(
            start,
            reachable,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            bytes_max=self._options.trigger_bytes_max,
            gaps={key: state.gaps for key, state in self._survey.logs.items()},
        )

    def _waits_for_rows(self, rows: int) -> bool:
        """Whether minOffsetsPerTrigger delays the batch. The first one after a start is not."""
        rows_min, now_s = self._options.trigger_rows_min, time.monotonic()
        if rows_min is None:
            return False
        waited_s = None if self._triggered_s is None else now_s - self._triggered_s
        if rows < rows_min and waited_s is not None and waited_s < self._options.trigger_delay_s:
            return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        away = left_out_nodes(self._survey)
        if self._latest is not None:
            return to_json(self._latest, away=away)
        # The first batch after a restart was planned before it: the nodes say how far they are.
        if not self._survey.names:
            with suppress(Unreachable):
                self._look()
        away = left_out_nodes(self._survey)
        ends = {key: _end_of(state) for key, state in self._survey.logs.items()}
        others = {k: place for k, place in self._planned.items() if not self._options.wants(k[0])}
        return to_json({**others, **ends}, away=away) if ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = from_json(start), from_json(end)
        self._planned = after
        if self._latest is None and before == self._initial:
            before = _named_as(after, before)
            self._require_as_planned(before, after)
        rows = rows_between(before, after)
        self._wait_for_nodes({key: after[key] for key in rows})
        for key in rows:  # of a batch that was planned before a restart
            state = self._survey.logs.get(key)
            is_same = state is not None and state.log == after[key].log
            if state is not None and is_same and self._has_gone_back(after[key], state):
                self._lost(_went_back(state, after[key]))
        ranges: list[LogRange] = []
        for key in rows:
            state = self._survey.logs.get(key)
            whole = self._range(key, start=before[key].offset, end=after[key])
            ranges += without_gaps(whole, state.gaps if state is not None else ())
        rows_max = self._options.partition_rows_max
        parts = split(
            ranges,
            partitions_min=self._options.partitions_min,
            rows_max=rows_max,
            cores=self._options.cores,
        )
        return [*parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_ranges(partition.ranges, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.hold is None:
            return
        offsets = {key: place.offset for key, place in from_json(end).items()}
        moved = {key: at for key, at in offsets.items() if self._committed.get(key) != at}
        names = self._survey.names
        failed = self._connected().commit_holds(moved, names, patience_s=PATIENCE_S)
        self._committed.update(moved)
        for key in failed:
            self._committed.pop(key, None)  # again with the next batch
            self._held = {held for held in self._held if held[0] != key}

    def stop(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None

    def _connected(self) -> Nodes:
        if self._nodes is None:
            self._nodes = Nodes(self._options)
        return self._nodes

    def _look(self, patience_s: float | None = PATIENCE_S) -> None:
        """Survey all nodes, at most every IDLE_S."""
        wait_s = self._surveyed_s + IDLE_S - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._survey = self._connected().survey(patience_s=patience_s)
        self._surveyed_s = time.monotonic()
        for address, text in self._survey.silent.items():
            if address not in self._warned:
                _LOG.warning("%s is left out for now: %s", address, text)
        self._warned = {*self._survey.silent}

    def _reachable(self, positions: Positions) -> Positions:
        """The newest position of each log. Logs of nodes that do not answer stay where they are."""
        reached: Positions = {}
        moved = self._moved(positions)
        for key, place in positions.items():
            state = self._survey.logs.get(key)
            if key in moved:
                reached[moved[key]] = place
            elif state is None:
                if self._options.wants(key[0]) and key[1] in self._survey.names:
                    self._lost(f"topic {key[0]} on {key[1]} was deleted")
                    continue
                reached[key] = place
            else:
                reached[key] = self._next(place, state)
        for key, state in self._survey.logs.items():
            if key not in positions and (self._target is None or key in self._target):
                begin = self._begin_of(state)
                if begin is not None:
                    reached.setdefault(key, begin)
        return reached

    def _begin_of(self, state: LogState) -> Position | None:
        """Where a log begins that was not there when the stream began; None if its node has gone
        away just now."""
        offset = state.first
        if self._others_ns is not None and state.first < state.end:
            try:
                offset = self._connected().offset_at(state, self._others_ns)
            except Unreachable as error:
                _LOG.warning("topic %s on %s: %s", state.topic, state.node, error)
                return None
        return Position(state.log, max(offset, state.first), state.row_bytes, state.now_ns)

    def _moved(self, positions: Positions) -> dict[Key, Key]:
        """Logs whose node has a new address, recognised by their ids: old and new key."""
        by_log = {
            (key[0], state.log): key
            for key, state in self._survey.logs.items()
            if key not in positions
        }
        moved: dict[Key, Key] = {}
        for key, place in positions.items():
            now = by_log.get((key[0], place.log))
            if now is not None and key not in self._survey.logs:
                _LOG.warning("topic %s has moved from %s to %s", key[0], key[1], now[1])
                moved[key] = now
        return moved

    def _next(self, place: Position, state: LogState) -> Position:
        """The newest position of one log, checked against the one that was reached."""
        where = f"topic {state.topic} on {state.node}"
        if state.log != place.log:
            self._lost(f"{where} was deleted and created again: log {place.log} is now {state.log}")
            return Position(state.log, state.first, state.row_bytes, state.now_ns)
        if state.end < place.offset:
            self._lost(f"{where} ends at {state.end}, before the checkpoint's {place.offset}")
            return self._after(place, state)
        if self._has_gone_back(place, state):
            self._lost(_went_back(state, place))
            return self._after(place, state)
        if place.offset < state.first:
            self._lost(f"{where}: offset {place.offset} is retired, the oldest is {state.first}")
        target = _end_of(state) if self._target is None else self._target.get(state.key)
        # With nothing new, return the old position: Spark would take any other for a batch.
        is_further = target is not None and target.log == place.log and target.offset > place.offset
        return target if target is not None and is_further else place

    def _after(self, place: Position, state: LogState) -> Position:
        """In a log that went back to an older state: where the messages begin that were published
        after those before `place` were read."""
        offset = self._connected().offset_at(state, place.at_ns + 1) if place.at_ns else state.end
        return Position(state.log, offset, state.row_bytes, state.now_ns)

    def _has_gone_back(self, place: Position, state: LogState) -> bool:
        """Looked at once for each start of the node, which may be another state of it."""
        start = (state.topic, state.log, state.started)
        if start in self._known:
            return False
        found = gone_back(place, state, self._connected())
        if not found:
            self._known.add(start)
        return found

    def _require_as_planned(self, before: Positions, after: Positions) -> None:
        """Raise an error if the first batch, repeated after a restart, would have fewer rows.

        Spark's checkpoint has the end of the first batch and not its start. The start is computed
        again, and has no positions for nodes that are away now.
        """
        for (topic, node), place in after.items():
            begin = before.get((topic, node))
            if begin is None and self._options.wants(topic):
                raise Unreachable(
                    f"{node} is needed to go on: it is away, and the first batch, which was "
                    f"interrupted, has its messages of topic {topic}"
                )
            if begin is not None and begin.log != place.log:
                self._lost(f"topic {topic} on {node} was deleted and created again")

    def _range(self, key: Key, *, start: int, end: Position) -> LogRange:
        return LogRange(
            topic=key[0],
            node=key[1],
            address=self._addresses({key: end})[key],
            log=end.log,
            start=start,
            end=end.offset,
            row_bytes=end.row_bytes,
        )

    def _wait_for_nodes(self, needed: Positions) -> None:
        """Wait until all nodes of a batch answer: after a restart, one may not be back yet."""
        deadline_s = time.monotonic() + self._options.connecting.retry_s
        while missing := sorted({key[1] for key in needed.keys() - self._addresses(needed).keys()}):
            if time.monotonic() > deadline_s:
                reasons = "; ".join(self._survey.silent.values()) or "nobody knows its address"
                raise Unreachable(f"{', '.join(missing)} is needed to go on: {reasons}")
            self._survey = self._connected().survey(patience_s=PATIENCE_S)
            if needed.keys() - self._addresses(needed).keys():
                time.sleep(NODE_POLL_S)

    def _addresses(self, needed: Positions) -> dict[Key, str]:
        """The address to read each log from: its node's, or of the node that has it now. A log that
        no known node has is left out."""
        now = {(state.topic, state.log): state.address for state in self._survey.logs.values()}
        addresses: dict[Key, str] = {}
        for key, place in needed.items():
            address = self._survey.names.get(key[1]) or now.get((key[0], place.log))
            if address is not None:
                addresses[key] = address
        return addresses

    def _hold(self, positions: Positions, *, starting: bool = False) -> None:
        """Create the holds that this reader has not created yet. When a stream starts, a failure is
        an error; later it is a warning."""
        if self._options.hold is None:
            return
        for key, place in positions.items():
            state = self._survey.logs.get(key)
            if state is None or state.log != place.log or (key, place.log) in self._held:
                continue
            try:
                stands = self._connected().create_hold(state, max(place.offset, state.first))
            except (Unreachable, NodeRefused) as error:
                if starting:
                    raise NsqError(_why_no_hold(self._options.hold, state, error)) from None
                _LOG.warning("hold on topic %s on %s: %s", *key, error)
                continue
            self._held.add((key, place.log))
            if stands > place.offset:
                _LOG.warning(
                    "hold %s on topic %s on %s stands at %d, beyond %d: is it another stream's?",
                    *(self._options.hold, *key, stands, place.offset),
                )

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false goes on with what is there")
        _LOG.warning("%s", text)


def _end_of(state: LogState) -> Position:
    return Position(state.log, state.end, state.row_bytes, state.now_ns)


def _named_as(named: Positions, positions: Positions) -> Positions:
    """The positions under the names that the nodes of their logs have in `named`."""
    names = {(topic, place.log): node for (topic, node), place in named.items()}
    return {(t, names.get((t, place.log), node)): place for (t, node), place in positions.items()}


def _went_back(state: LogState, place: Position) -> str:
    return (
        f"topic {state.topic} on {state.node} went back to an older state, as of a backup: the "
        f"message before offset {place.offset} is not the one that was read"
    )


def _why_no_hold(hold: str, state: LogState, error: NsqError) -> str:
    where = f"hold '{hold}' on topic {state.topic} on {state.node}"
    if isinstance(error, NodeRefused) and error.code == "CHANNEL_EXISTS":
        return f"{where}: there is a channel of that name; holds need names of their own"
    return f"{where}: {error}"
