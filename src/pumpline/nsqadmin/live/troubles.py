"""What needs a person, in words: found in the rows after every poll, the worst first."""

from collections.abc import Iterator

from pumpline.cluster.health import Level, disk_level, is_deserted, is_unwell
from pumpline.nsqadmin.live.history import STEP_S, step_of
from pumpline.nsqadmin.live.rows import ChannelRow, NodeRow, TopicRow
from pumpline.nsqadmin.live.state import ClusterState, Trouble
from pumpline.web.yielding import Pace

TROUBLE = "trouble"
WARNING = "warning"
GROWING_MIN = 100  # messages; below that, growth is noise
GROWING_MINUTES = 5
TIMEOUTS_PER_MINUTE_MIN = 1.0

_ORDER = {TROUBLE: 0, WARNING: 1}
_KINDS = (
    "node_silent",
    "unhealthy",
    "disk_full",
    "no_consumers",
    "growing",
    "timeouts",
    "missing",
    "paused",
)


async def find_troubles(state: ClusterState) -> list[Trouble]:
    """All there are; those that were there before keep their time. Counts them in the rows."""
    pace = Pace()
    known = {trouble.place: trouble.since_ms for trouble in state.troubles}
    found = [*_of_daemons(state)]
    for topic in state.topics.values():
        in_topic = [*_of_topic(topic)]
        topic.troubles = len(in_topic)
        for channel in topic.by_channel.values():
            in_channel = [*_of_channel(channel, state.at_s)] if not channel.hold else []
            channel.troubles = len(in_channel)
            topic.troubles += channel.troubles
            in_topic += in_channel
        found += in_topic
        await pace.breathe()
    for trouble in found:
        trouble.since_ms = known.get(trouble.place, trouble.since_ms or state.at_ms)
    found.sort(key=_weight)
    return found


def _weight(trouble: Trouble) -> tuple[int, int, str, str]:
    kind = _KINDS.index(trouble.kind)
    return _ORDER[trouble.severity], kind, trouble.topic or trouble.node, trouble.channel


def _of_daemons(state: ClusterState) -> Iterator[Trouble]:
    for lookupd in state.lookupds.values():
        if not lookupd.ok:
            yield Trouble(
                kind="node_silent",
                severity=TROUBLE,
                lookupd=lookupd.lookupd,
                text=f"nsqlookupd does not answer: {lookupd.error}",
                since_ms=lookupd.since_ms or 0,
            )
    for node in state.nodes.values():
        in_node = [*_of_node(node)]
        node.troubles = len(in_node)
        yield from in_node


def _of_node(node: NodeRow) -> Iterator[Trouble]:
    name = node.node
    if not node.ok:
        text = f"does not answer: {node.error}"
        since_ms = node.since_ms or 0
        yield Trouble(kind="node_silent", severity=TROUBLE, node=name, text=text, since_ms=since_ms)
        return
    if is_unwell(node.health):
        yield Trouble(kind="unhealthy", severity=TROUBLE, node=name, text=node.health)
    if node.disk_total and node.disk_free is not None:
        share = node.disk_free / node.disk_total
        if level := disk_level(share):
            severity = TROUBLE if level is Level.CRITICAL else WARNING
            text = f"disk {100 - 100 * share:.0f} % full, {in_bytes(node.disk_free)} left"
            yield Trouble(kind="disk_full", severity=severity, node=name, text=text)
    if node.missing_at:
        text = f"not known at {', '.join(node.missing_at)}"
        yield Trouble(kind="missing", severity=WARNING, node=name, text=text)


def _of_topic(topic: TopicRow) -> Iterator[Trouble]:
    if topic.paused and topic.depth:
        text = f"paused, {in_messages(topic.depth)} waiting"
        yield Trouble(kind="paused", severity=WARNING, topic=topic.topic, text=text)


def _of_channel(row: ChannelRow, now_s: float) -> Iterator[Trouble]:
    topic, channel = row.topic, row.channel
    behind = f"{in_time(row.lag_ms)} behind" if row.lag_ms is not None else ""
    if row.waiting and row.paused:
        text = f"paused, {in_messages(row.waiting)} waiting"
        yield Trouble(kind="paused", severity=WARNING, topic=topic, channel=channel, text=text)
    elif is_deserted(waiting=row.waiting, consumers=row.consumers):
        text = f"{behind or in_messages(row.waiting) + ' waiting'}, no consumer"
        yield Trouble(
            kind="no_consumers", severity=TROUBLE, topic=topic, channel=channel, text=text
        )
    elif growth := _growth(row, now_s):
        text = f"grew by {in_messages(growth)} in {GROWING_MINUTES} min, {row.waiting:,} waiting"
        if behind:
            text += f", {behind}"
        yield Trouble(kind="growing", severity=WARNING, topic=topic, channel=channel, text=text)
    per_minute = (row.timeout_rate or 0.0) * 60
    if per_minute >= TIMEOUTS_PER_MINUTE_MIN:
        text = f"{per_minute:,.0f} messages a minute time out"
        yield Trouble(kind="timeouts", severity=WARNING, topic=topic, channel=channel, text=text)


def _growth(row: ChannelRow, now_s: float) -> int:
    """Of the backlog, if it grew in each of the last minutes; else 0."""
    if row.history is None or row.waiting < GROWING_MIN:
        return 0
    waiting = row.history.series["waiting"]
    step = step_of(now_s)
    minute = 60 // STEP_S
    before: float = row.waiting
    for ago in range(1, GROWING_MINUTES + 1):
        then = waiting.at(step - ago * minute)
        if then is None or then >= before:
            return 0
        before = then
    growth = row.waiting - int(before)
    return growth if growth >= GROWING_MIN else 0


def in_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def in_time(ms: int) -> str:
    """As people say it: `<1 s`, `40 s`, `12 min`, `3 h`, `2 d`."""
    seconds = ms // 1000
    if seconds < 1:
        return "<1 s"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def in_bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
