"""Which messages a batch of a stream has, from its checkpoint; and where its first batch begins.

Spark notes where each batch ends, but not where the first one begins: after a crash within it, it
asks again, and `latest` is somewhere else by then. So the pipelines note the beginning themselves.
Knows positions; must not know what is done with the messages.
"""

import json
import logging
import time
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.errors import DataLoss, Unreachable
from pyspark_nsq.nodes.bounds import complete_survey, offsets_at, others_at
from pyspark_nsq.nodes.nodes import PATIENCE_S, Nodes, Survey
from pyspark_nsq.nodes.positions import (
    Key,
    Position,
    Positions,
    from_json,
    others_of,
    rows_between,
    to_json,
)
from pyspark_nsq.options import (
    ALL_OTHERS,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    ReadOptions,
    parse_read,
    time_text,
)
from pyspark_nsq.pipelines.table.history import positions_of
from pyspark_nsq.pipelines.table.storage import Storage

_LOG = logging.getLogger(__name__)

START = "start.json"  # in the checkpoint
BOUNDS = ("startingoffsets", "startingtimestamp", "endingoffsets", "endingtimestamp")
OF_STREAMS = (
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "maxbytespertrigger"),
    *("hold", "holdbytesmax", "holddescription"),
)


class FixedStart(NamedTuple):
    options: dict[str, str]  # of a stream whose first batch always begins at the same offsets
    unkept: str | None = None  # to be in the checkpoint before the stream begins

    def keep(self, checkpoint: Storage) -> None:
        """To be called when nothing is left that could refuse the stream: a start that is kept is
        not changed by --start any more."""
        if self.unkept is not None:
            checkpoint.write_text(START, self.unkept)


def fixed_start(options: dict[str, str], checkpoint: Storage) -> FixedStart:
    """Where a stream begins: as the checkpoint has it, or else as the options say."""
    text = checkpoint.read_text(START)
    if checkpoint.batches("commits") or (text is None and checkpoint.batches("offsets")):
        return FixedStart(options)
    read = parse_read(options, streaming=True)
    nodes = Nodes(read)
    try:
        kept = json.loads(text) if text is not None else {}
        known = from_json(kept)
        began_ns = time.time_ns()
        survey = complete_survey(nodes, read, known, waits=True)
        if text is None:
            found = offsets_at(read.starting, survey, nodes, read)
            others_ns = others_at(read.starting, survey, began_ns)
        else:
            others_ns = others_of(kept)
            found = _kept_offsets(known, survey, read)
    finally:
        nodes.close()
    unkept = None
    if text is None:
        places = {key: Position(survey.logs[key].log, offset) for key, offset in found.items()}
        unkept = json.dumps(to_json(places, others_ns))
    own = {name: value for name, value in options.items() if name.lower() not in BOUNDS}
    # A topic that is created from now on is read from its beginning; a log whose node is away now,
    # from the time at which the stream begins.
    others = OFFSET_EARLIEST if others_ns is None else time_text(others_ns)
    offsets = {**_nested(found), ALL_OTHERS: {ALL_OTHERS: others}}
    return FixedStart({**own, "startingOffsets": json.dumps(offsets)}, unkept)


def _kept_offsets(known: Positions, survey: Survey, read: ReadOptions) -> dict[Key, int]:
    """The offsets of a kept start, under the names that the nodes have now. DataLoss if a node has
    deleted a log before its first batch was read."""
    now = {(state.topic, state.log): key for key, state in survey.logs.items()}
    found: dict[Key, int] = {}
    for (topic, node), place in known.items():
        key = now.get((topic, place.log))
        if key is not None:
            found[key] = place.offset
        elif read.wants(topic) and node in survey.names:
            text = f"topic {topic} on {node} was deleted before its first messages were read"
            if read.fail_on_data_loss:
                raise DataLoss(f"{text}; failOnDataLoss=false goes on with what is there")
            _LOG.warning("%s", text)
    return found


def messages_of(
    spark: SparkSession, options: dict[str, str], checkpoint: Storage, batch: int
) -> DataFrame | None:
    """The messages that a batch of a stream reads; None if there are none."""
    before = _begin(checkpoint) if batch == 0 else positions_of(checkpoint, batch - 1)
    after = positions_of(checkpoint, batch)
    rows = rows_between(before, after)
    if not rows:
        return None
    own = {k: v for k, v in options.items() if k.lower() not in (*BOUNDS, *OF_STREAMS)}
    own.pop("subscribePattern", None)
    own["subscribe"] = ",".join(sorted({topic for topic, _ in rows}))
    nodes = Nodes(parse_read(own, streaming=False))
    try:
        there = nodes.survey(patience_s=PATIENCE_S).logs
        if not rows.keys() <= there.keys():
            there = nodes.survey().logs
    finally:
        nodes.close()
    if gone := sorted({node for topic, node in rows if (topic, node) not in there}):
        raise Unreachable(f"{', '.join(gone)} is needed to go on: batch {batch} has its messages")
    # From the nodes of this batch only: others may be away.
    own.pop("lookupd", None)
    own["nsqd"] = ",".join(sorted({there[key].address for key in rows}))
    on = {key for key in there if key[1] in {node for _, node in rows}}
    # Nothing of their other logs: the range begins and ends at their end.
    starts = {key: before[key].offset if key in rows else OFFSET_LATEST for key in on}
    ends = {key: after[key].offset if key in rows else OFFSET_LATEST for key in on}
    reader = spark.read.format("nsq").options(**own)
    reader = reader.option("startingOffsets", json.dumps(_nested(starts)))
    return reader.option("endingOffsets", json.dumps(_nested(ends))).load()


def _begin(checkpoint: Storage) -> Positions:
    text = checkpoint.read_text(START)
    return from_json(json.loads(text)) if text else {}


def _nested(offsets: dict[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, node), offset in offsets.items():
        found.setdefault(topic, {})[node] = offset
    return found
