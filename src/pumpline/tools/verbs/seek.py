"""`pumpline seek`: move a channel to another place of its topic's log, after saying what that does.

Each node has a log of its own: a time, the beginning and the end mean the same on all of them, an
offset only on one.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.dates import parse_time
from pumpline.core.text.flags import BOOL, DURATION, INT, STRING, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.output import Column, shown_number, shown_yes
from pumpline.tools.verbs.verb import (
    Call,
    ChangeOptions,
    Nothing,
    Verb,
    run_verb,
)

NO_OFFSET = -1


@dataclass(slots=True, kw_only=True)
class SeekOptions(ChangeOptions):
    to: str = option(STRING, "", "beginning or end")
    time: str = option(STRING, "", "RFC 3339, or nanoseconds since 1970")
    ago_ns: int = option(DURATION, 0, "so long before now")
    offset: int = option(INT, NO_OFFSET, "of one node's log; -1 for none")
    dry_run: bool = option(BOOL, False, "only say what would happen")


COLUMNS = (
    Column("node", "node"),
    Column("offset", "to offset", shown_number, is_number=True),
    Column("again", "delivered again", shown_number, is_number=True),
    Column("skipped", "skipped", shown_number, is_number=True),
    Column("in_flight", "in flight", shown_number, is_number=True),
    Column("depth", "depth then", shown_number, is_number=True),
    Column("clamped", "older is gone", shown_yes, is_rare=True),
)
DONE_COLUMNS = (COLUMNS[0], COLUMNS[1], Column("depth", "depth", shown_number, is_number=True))


def run(call: Call[SeekOptions]) -> int:
    topic, channel = call.arguments
    place = _place(call.options)
    nodes, _ = call.with_channel(topic, channel)
    if "offset" in place and len(nodes) > 1:
        raise UsageError(f"--offset is for one node, and {len(nodes)} have it: say --nsqd")

    def seek(node: ClusterNode, *, dry_run: bool) -> dict[str, Any]:
        query = {"topic": topic, "channel": channel, **place, "dry_run": str(dry_run).lower()}
        try:
            answer: Any = node.post_json("/channel/seek", query)
        except NodeFailure as failure:
            if failure.code == "NOT_FOUND":
                raise NodeFailure("it cannot seek: it is a stock nsqd") from None
            raise
        figures = ("offset", "depth", *(("again", "skipped", "in_flight") if dry_run else ()))
        row = {"node": node.address, **{key: int(answer[key]) for key in figures}}
        return {**row, "clamped": bool(answer["clamped"])}

    effects = call.each(nodes, lambda node: seek(node, dry_run=True))
    if not effects:
        raise Nothing("no node can do it")
    can = [node for node in nodes if node.address in effects]
    rows = list(effects.values())
    if call.options.dry_run:
        call.out.rows(COLUMNS, rows, empty="")
        return call.exit_code
    if call.out.is_table and not call.options.yes:
        call.out.rows(COLUMNS, rows, empty="")
    again, skipped = (sum(row[key] for row in rows) for key in ("again", "skipped"))
    question = (
        f"Move channel {channel} of topic {topic} on {len(can)} of {len(nodes)} nodes: "
        f"{again:,} finished messages delivered again, {skipped:,} unfinished skipped?"
    )
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    done = call.each(can, lambda node: seek(node, dry_run=False))
    call.out.rows(DONE_COLUMNS, list(done.values()), empty="")
    return call.exit_code


def _place(options: SeekOptions) -> dict[str, str]:
    """The parameter that says where to; UsageError unless there is exactly one."""
    given: dict[str, str] = {}
    if options.to:
        given["to"] = options.to
        if options.to not in ("beginning", "end"):
            raise UsageError("--to is beginning or end")
    if options.time:
        given["time"] = options.time
        try:
            parse_time(options.time)
        except ValueError as error:
            raise UsageError(
                f"--time {options.time}: {error}, such as 2026-11-16T08:00:00Z"
            ) from None
    if options.offset < NO_OFFSET:
        raise UsageError("--offset is 0 or more")
    if options.offset != NO_OFFSET:
        given["offset"] = str(options.offset)
    if options.ago_ns < 0:
        raise UsageError("--ago is a time before now, such as 1h")
    if options.ago_ns:
        given["ago"] = ""
    if len(given) != 1:
        raise UsageError("say where to, by one of --to, --time, --ago and --offset")
    if "ago" in given:
        return {"time": str(max(time.time_ns() - options.ago_ns, 0))}
    return given


VERB = Verb(
    name="seek",
    summary="move a channel to another place of the log, after a dry run",
    places="<topic> <channel>",
    options=SeekOptions,
    examples="""
        pumpline seek orders billing --to beginning --dry-run
        pumpline seek orders billing --ago 1h --yes
        pumpline seek orders billing --time 2026-11-16T08:00:00Z --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
