"""`pumpline holds`: who keeps a place in a topic's log, and how much of the log that pins."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from pumpline.cluster.node import ClusterNode
from pumpline.cluster.stats import read_stats
from pumpline.core.text.durations import NS_PER_S
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.changes import change
from pumpline.tools.verbs.output import (
    Column,
    shown_bytes,
    shown_number,
    shown_seconds,
    shown_yes,
)
from pumpline.tools.verbs.verb import Call, ChangeOptions, Nothing, Verb, run_verb

COLUMNS = (
    Column("topic", "topic"),
    Column("hold", "hold"),
    Column("node", "node"),
    Column("offset", "offset", shown_number, is_number=True),
    Column("depth", "depth", shown_number, is_number=True),
    Column("bytes", "pins", shown_bytes, is_number=True),
    Column("bytes_max", "at most", shown_bytes, is_number=True),
    Column("committed_seconds", "committed ago", shown_seconds, is_number=True),
    Column("dropped", "dropped", shown_yes, is_rare=True),
    Column("description", "reader", is_rare=True),
)


def run(call: Call[ChangeOptions]) -> int:
    if call.argument(0) == "delete":
        if len(call.arguments) != 3:
            raise UsageError("delete needs a topic and a hold")
        return _delete(call, call.arguments[1], call.arguments[2])
    if len(call.arguments) > 1:
        raise UsageError("list takes one topic")
    topic = call.argument(0) or None
    found = call.each(call.nodes(), lambda node: holds_of(node, topic))
    if topic and found and all(rows is None for rows in found.values()):
        raise Nothing(f"no nsqd has a topic {topic}")
    rows = [row for each in found.values() for row in each or ()]
    rows.sort(key=_order)
    call.out.rows(COLUMNS, rows, empty="no holds")
    return call.exit_code


def holds_of(node: ClusterNode, topic: str | None) -> list[dict[str, Any]] | None:
    """The holds of a node's topics; None if it does not have the topic."""
    seen = read_stats(node, topic)
    if seen.topics is None or (topic and not seen.topics):
        return None
    rows: list[dict[str, Any]] = []
    now_ns = time.time_ns()
    for each in seen.topics:
        if not any(channel.hold for channel in each.channels):
            continue
        answer: Any = node.get_json("/hold/list", {"topic": each.topic_name})
        for hold in answer["holds"]:
            age_s = max(now_ns - hold["committed_at"], 0) / NS_PER_S
            rows.append(
                {
                    "topic": each.topic_name,
                    "node": node.address,
                    "description": "",
                    **hold,
                    "committed_seconds": round(age_s, 3),
                }
            )
    return rows


def _delete(call: Call[ChangeOptions], topic: str, hold: str) -> int:
    nodes = call.nodes()
    found = call.each(nodes, lambda node: holds_of(node, topic))
    having = {
        address: row for address, rows in found.items() for row in rows or () if row["hold"] == hold
    }
    if not having:
        raise Nothing(f"topic {topic} has no hold {hold}")
    unread = sum(row["depth"] for row in having.values())
    question = (
        f"Delete hold {hold} of topic {topic} on {len(having)} nodes? Its reader has not committed "
        f"{unread:,} messages, and may not find them any more."
    )
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    query = {"topic": topic, "hold": hold}
    targets = [node for node in nodes if node.address in having]
    change(call, targets, lambda node: node.post("/hold/delete", query), done="deleted")
    return call.exit_code


def _order(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["topic"], row["hold"], row["node"]


VERB = Verb(
    name="holds",
    summary="list the holds of readers such as Spark, with what they pin, or delete one",
    places="[topic | delete] [topic] [hold]",
    options=ChangeOptions,
    examples="""
        pumpline holds
        pumpline holds orders
        pumpline holds delete orders archive --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
