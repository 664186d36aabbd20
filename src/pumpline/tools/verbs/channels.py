"""`pumpline channels`: the channels of a topic, or of all: depth, lag in time, consumers."""

import sys
from collections.abc import Sequence

from pumpline.cluster.stats import channel_sums
from pumpline.tools.verbs.output import (
    Column,
    as_dict,
    shown_count,
    shown_list,
    shown_number,
    shown_seconds,
    shown_yes,
)
from pumpline.tools.verbs.topics import TopicsOptions
from pumpline.tools.verbs.verb import Call, Nothing, Verb, run_verb

COLUMNS = (
    Column("topic", "topic"),
    Column("channel", "channel"),
    Column("nodes", "nodes", shown_count, is_number=True),
    Column("depth", "depth", shown_number, is_number=True),
    Column("lag_seconds", "lag", shown_seconds, is_number=True),
    Column("in_flight", "in flight", shown_number, is_number=True),
    Column("deferred", "deferred", shown_number, is_number=True),
    Column("requeues", "requeued", shown_number, is_number=True),
    Column("timeouts", "timed out", shown_number, is_number=True),
    Column("consumers", "consumers", shown_number, is_number=True),
    Column("paused", "paused", shown_yes, is_rare=True),
    Column("hold", "hold", shown_yes, is_rare=True),
)
NODE_COLUMNS = (*COLUMNS[:2], Column("nodes", "node", shown_list), *COLUMNS[3:])


def run(call: Call[TopicsOptions]) -> int:
    topic = call.argument(0) or None
    stats = call.stats(topic)
    if topic and stats and not any(seen.topics for seen in stats.values()):
        raise Nothing(f"no nsqd has a topic {topic}")
    parts = [{node: seen} for node, seen in stats.items()] if call.options.by_node else [stats]
    rows = [as_dict(row) for part in parts for row in channel_sums(part)]
    if call.options.names:
        call.out.names([row for row in rows if not row["hold"]], "channel")
        return call.exit_code
    columns: Sequence[Column] = NODE_COLUMNS if call.options.by_node else COLUMNS
    call.out.rows(columns, rows, empty="no channels")
    return call.exit_code


VERB = Verb(
    name="channels",
    summary="list channels, with depth, lag in time and consumers",
    places="[topic]",
    options=TopicsOptions,
    examples="""
        pumpline channels
        pumpline channels orders --by-node
        pumpline channels orders --json
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
