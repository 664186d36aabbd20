"""Which messages a batch of a stream has, from its checkpoint; and where its first batch begins.

Spark notes where each batch ends, but not where the first one begins: after a crash within it, it
asks again, and `latest` is somewhere else by then. So the pipelines note the beginning themselves.
Knows positions; must not know what is done with the messages.
"""

import json
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.errors import Unreachable
from pyspark_nsq.nodes.absence import require_nodes
from pyspark_nsq.nodes.bounds import complete_survey, offsets_at
from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.nodes.positions import Positions, from_json, rows_between
from pyspark_nsq.options import ALL_OTHERS, OFFSET_EARLIEST, OFFSET_LATEST, parse_read
from pyspark_nsq.pipelines.table.history import positions_of
from pyspark_nsq.pipelines.table.storage import Storage

START = "start.json"  # in the checkpoint
BOUNDS = ("startingoffsets", "startingtimestamp", "endingoffsets", "endingtimestamp")
OF_STREAMS = ("maxoffsetspertrigger", "hold", "holdbytesmax", "holddescription")


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
        survey = complete_survey(nodes, read, waits=True)
        if text is None:
            found = offsets_at(read.starting, survey, nodes, read)
        else:
            known = from_json(json.loads(text))
            require_nodes(survey, known, read)
            found = {key: place.offset for key, place in known.items() if key in survey.logs}
    finally:
        nodes.close()
    unkept = None
    if text is None:
        places = {
            topic: {
                node: {"log": survey.logs[topic, node].log, "offset": offset}
                for (of, node), offset in sorted(found.items())
                if of == topic
            }
            for topic, _ in sorted(found)
        }
        unkept = json.dumps(places)
    own = {name: value for name, value in options.items() if name.lower() not in BOUNDS}
    # A topic that is created from now on is read from its beginning.
    offsets = {**_nested(found), ALL_OTHERS: {ALL_OTHERS: OFFSET_EARLIEST}}
    return FixedStart({**own, "startingOffsets": json.dumps(offsets)}, unkept)


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
