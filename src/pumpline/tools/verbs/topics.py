"""`pumpline topics`: all topics, over all nodes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pumpline.cluster.stats import topic_sums
from pumpline.core.text.flags import BOOL, option
from pumpline.tools.verbs.output import (
    Column,
    as_dict,
    shown_bytes,
    shown_count,
    shown_list,
    shown_number,
    shown_yes,
)
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb


@dataclass(slots=True, kw_only=True)
class TopicsOptions(VerbOptions):
    by_node: bool = option(BOOL, False, "a row for each node, instead of the sum")
    names: bool = option(BOOL, False, "print the names alone, one a line")


COLUMNS = (
    Column("topic", "topic"),
    Column("nodes", "nodes", shown_count, is_number=True),
    Column("channels", "channels", shown_number, is_number=True),
    Column("depth", "depth", shown_number, is_number=True),
    Column("messages", "messages", shown_number, is_number=True),
    Column("bytes", "bytes", shown_bytes, is_number=True),
    Column("paused", "paused", shown_yes, is_rare=True),
)
NODE_COLUMNS = (COLUMNS[0], Column("nodes", "node", shown_list), *COLUMNS[2:])


def run(call: Call[TopicsOptions]) -> int:
    pattern = call.argument(0)
    stats = call.stats()
    parts = [{node: seen} for node, seen in stats.items()] if call.options.by_node else [stats]
    rows = [
        as_dict(row)
        for part in parts
        for row in topic_sums(part)
        if not pattern or fnmatchcase(row.topic, pattern)
    ]
    if call.options.names:
        call.out.names(rows, "topic")
        return call.exit_code
    columns = NODE_COLUMNS if call.options.by_node else COLUMNS
    call.out.rows(columns, rows, empty="no topics")
    return call.exit_code


VERB = Verb(
    name="topics",
    summary="list topics, with depth and channels",
    places="[pattern]",
    options=TopicsOptions,
    examples="""
        pumpline topics
        pumpline topics 'order*' --by-node
        for topic in $(pumpline topics --names); do echo "$topic"; done
        pumpline topics --lookupd 127.0.0.1:4161 --json
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
