"""The doctor's checks: from what was seen to findings. Pure.

| check       | warning                                  | critical                              |
|-------------|------------------------------------------|---------------------------------------|
| answers     |                                          | a node or nsqlookupd does not answer  |
| health      | writes or fsyncs failed since the start  | a node says that it is not well       |
| broadcast   |                                          | clients cannot connect to its address |
| discovery   | a node has lost an nsqlookupd            | an nsqlookupd does not know a node    |
| versions    | not all nodes have the same              |                                       |
| clocks      | off by 2 s                               | off by 30 s                           |
| consumers   | messages wait and nobody consumes        |                                       |
| paused      | a topic or channel is paused             |                                       |
| holds       | near its limit; not committed for a day  | dropped: its reader misses messages   |
| disk        | less than 15 % is free                   | less than 5 %                         |
| descriptors | 80 % are in use                          | 95 %                                  |
| token-file  | others than its owner can read it        |                                       |
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pumpline.cluster.health import Level, descriptor_level, disk_level, is_deserted, is_unwell
from pumpline.cluster.stats import channel_sums, topic_sums, topics_of
from pumpline.tools.doctor.evidence import Evidence
from pumpline.tools.verbs.output import shown_bytes, shown_seconds

CLOCK_WARNING_S = 2.0
CLOCK_CRITICAL_S = 30.0
HOLD_QUIET_S = 86_400
HOLD_FULL_RATIO = 0.5
OTHERS_READ = 0o044


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    check: str
    subject: str  # a node, topic, channel or file
    text: str


Found = Iterator[tuple[Level, str, str]]  # level, subject, text


def findings_of(evidence: Evidence) -> list[Finding]:
    """All that is wrong, the worst first."""
    found = [
        Finding(level, name, subject, text)
        for name, check in CHECKS.items()
        for level, subject, text in check(evidence)
    ]
    return sorted(found, key=lambda each: -each.level)


def _answers(evidence: Evidence) -> Found:
    for address, why in evidence.lookupd_failures.items():
        yield Level.CRITICAL, f"nsqlookupd {address}", why
    for address, why in evidence.node_failures.items():
        yield Level.CRITICAL, address, why
    if not evidence.processes and not evidence.node_failures:
        yield Level.CRITICAL, "cluster", "there is no nsqd"


def _health(evidence: Evidence) -> Found:
    for process in evidence.processes:
        if is_unwell(process.stats.health):
            yield Level.CRITICAL, process.address, process.stats.health
        for name, what in (("write", "writes"), ("fsync", "fsyncs")):
            count = process.metrics.get(f"nsqd_{name}_failures_total", 0)
            if count:
                yield Level.WARNING, process.address, f"{count:.0f} {what} failed since its start"


def _broadcast(evidence: Evidence) -> Found:
    for process in evidence.processes:
        if process.unreachable:
            yield (
                Level.CRITICAL,
                process.address,
                f"consumers are sent to {process.broadcast}, which cannot be reached from here: "
                f"{process.unreachable} (nsqd's --broadcast-address)",
            )


def _discovery(evidence: Evidence) -> Found:
    known = {process.address for process in evidence.processes}
    for lookupd in evidence.lookupds:
        for address in sorted(known - set(lookupd.nodes)):
            text = f"nsqlookupd {lookupd.address} does not know it: consumers miss its messages"
            yield Level.CRITICAL, address, text
    for process in evidence.processes:
        for address in process.lost_lookupds:
            yield Level.WARNING, process.address, f"it is not connected to nsqlookupd {address}"


def _versions(evidence: Evidence) -> Found:
    seen = [(each.version, each.address) for each in evidence.processes]
    seen += [(each.version, f"nsqlookupd {each.address}") for each in evidence.lookupds]
    counts = Counter(version for version, _ in seen)
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        for version, address in seen:
            if version != usual:
                yield Level.WARNING, address, f"version {version}; most others have {usual}"


def _clocks(evidence: Evidence) -> Found:
    seen = [(each.address, each.clock_ahead_s) for each in evidence.processes]
    seen += [(f"nsqlookupd {each.address}", each.clock_ahead_s) for each in evidence.lookupds]
    for address, ahead_s in seen:
        off_s = ahead_s or 0.0
        if abs(off_s) >= CLOCK_WARNING_S:
            level = Level.CRITICAL if abs(off_s) >= CLOCK_CRITICAL_S else Level.WARNING
            side = "ahead of" if off_s > 0 else "behind"
            yield level, address, f"its clock is {shown_seconds(abs(off_s))} {side} this one"


def _consumers(evidence: Evidence) -> Found:
    stats = {process.address: process.stats for process in evidence.processes}
    for channel in channel_sums(stats):
        waiting = channel.depth + channel.deferred
        if is_deserted(waiting=waiting, consumers=channel.consumers, is_hold=channel.hold):
            lag = channel.lag_seconds
            since = f", the oldest for {shown_seconds(lag)}" if lag is not None else ""
            where = f"{channel.topic}/{channel.channel}"
            yield Level.WARNING, where, f"{_waiting(waiting)}{since}; there is no consumer"
    for topic in topic_sums(stats):
        if topic.depth and not topic.channels:
            yield Level.WARNING, topic.topic, f"{_waiting(topic.depth)}; there is no channel"


def _waiting(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count:,} messages wait"


def _paused(evidence: Evidence) -> Found:
    stats = {process.address: process.stats for process in evidence.processes}
    for node, topic in topics_of(stats):
        if topic.paused:
            yield Level.WARNING, topic.topic_name, f"paused on {node}"
        for channel in topic.channels:
            if channel.paused:
                yield (
                    Level.WARNING,
                    f"{topic.topic_name}/{channel.channel_name}",
                    f"paused on {node}",
                )


def _holds(evidence: Evidence) -> Found:
    for hold in (each for process in evidence.processes for each in process.holds):
        where = f"{hold['topic']}/{hold['hold']}"
        pinned, limit, quiet_s = hold["bytes"], hold["bytes_max"], hold["committed_seconds"]
        if hold["dropped"]:
            text = (
                f"dropped on {hold['node']}: it exceeded {shown_bytes(limit)}; delete it, or its "
            )
            yield Level.CRITICAL, where, f"{text}reader misses messages"
        elif limit and pinned > HOLD_FULL_RATIO * limit:
            text = f"pins {shown_bytes(pinned)} of {shown_bytes(limit)} on {hold['node']}"
            yield Level.WARNING, where, f"{text}; beyond that it is dropped"
        elif hold["depth"] and quiet_s > HOLD_QUIET_S:
            text = f"not committed for {shown_seconds(quiet_s)}; it pins {shown_bytes(pinned)}"
            yield Level.WARNING, where, f"{text} on {hold['node']}"


def _disk(evidence: Evidence) -> Found:
    for process in evidence.processes:
        free = process.metrics.get("nsqd_disk_free_ratio", 1.0)
        if level := disk_level(free):
            yield level, process.address, f"{free:.1%} of its disk is free"


def _descriptors(evidence: Evidence) -> Found:
    for process in evidence.processes:
        used = process.metrics.get("process_open_fds", 0.0)
        most = process.metrics.get("process_max_fds", 0.0)
        if level := descriptor_level(used=used, most=most):
            yield level, process.address, f"{used:,.0f} of {most:,.0f} file descriptors are in use"


def _token_file(evidence: Evidence) -> Found:
    mode = evidence.token_file_mode
    if mode is not None and mode & OTHERS_READ:
        yield Level.WARNING, evidence.token_file, f"others can read it (mode {mode:04o}): chmod 600"


CHECKS: dict[str, Callable[[Evidence], Found]] = {
    "answers": _answers,
    "health": _health,
    "broadcast": _broadcast,
    "discovery": _discovery,
    "versions": _versions,
    "clocks": _clocks,
    "consumers": _consumers,
    "paused": _paused,
    "holds": _holds,
    "disk": _disk,
    "descriptors": _descriptors,
    "token-file": _token_file,
}
