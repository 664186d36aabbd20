"""What verbs that change something have in common: do it on each node, show what came of it."""

from collections.abc import Callable, Sequence

from pumpline.cluster.client import Outcome
from pumpline.cluster.node import ClusterNode
from pumpline.cluster.stats import SeenNode, channel_sums, topic_sums
from pumpline.tools.verbs.output import Column, shown_number
from pumpline.tools.verbs.verb import Call, Given

COLUMNS = (Column("node", "node"), Column("result", "result"))


def change(
    call: Call[Given],
    nodes: Sequence[ClusterNode],
    act: Callable[[ClusterNode], object],
    *,
    done: str,
    kind: str = "nsqd",
) -> None:
    """Do it on all nodes at once; a row for each, and the failures on stderr as well."""
    answers = call.cluster.each(nodes, act)
    call.told(answers, kind)
    call.out.rows(COLUMNS, outcome_rows(nodes, answers, done), empty="no node")


def outcome_rows(
    nodes: Sequence[ClusterNode], answers: Outcome[str, object], done: str
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for node in nodes:
        why = answers.failures.get(node.address)
        rows.append(
            {"node": node.address, "ok": why is None, "result": done if why is None else why}
        )
    return rows


def named(topic: str, channel: str) -> str:
    return f"channel {channel} of topic {topic}" if channel else f"topic {topic}"


def path(topic: str, channel: str, action: str) -> tuple[str, dict[str, str]]:
    """Where nsqd takes an action on a topic, or on a channel of it."""
    if channel:
        return f"/channel/{action}", {"topic": topic, "channel": channel}
    return f"/topic/{action}", {"topic": topic}


def content(stats: dict[str, SeenNode], channel: str) -> str:
    """What is there now, for the question before it goes."""
    places = f"{len(stats)} node{'s' if len(stats) != 1 else ''}"
    if channel:
        (row,) = channel_sums(stats)
        parts = [
            f"{shown_number(row.depth)} waiting",
            f"{shown_number(row.in_flight)} in flight",
            f"{shown_number(row.deferred)} deferred",
            f"{row.consumers} consumer{'s' if row.consumers != 1 else ''}",
        ]
        return f"{', '.join(parts)}, on {places}"
    (total,) = topic_sums(stats)
    waiting = total.depth + max((each.depth for each in channel_sums(stats)), default=0)
    channels = f"{total.channels} channel{'s' if total.channels != 1 else ''}"
    return f"{channels}, {shown_number(waiting)} messages not delivered, on {places}"
