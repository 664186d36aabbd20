"""What the doctor looks at: every node and nsqlookupd, asked once, and the token file.

Stock daemons say less; what they do not say is None, and not held against them. Must not judge.
"""

import os
import re
import socket
import stat
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from pumpline.core.text.addresses import split_address
from pumpline.tools.cluster.cluster import ClusterClient, unique
from pumpline.tools.cluster.figures import SeenNode, read_stats
from pumpline.tools.cluster.node import ClusterNode, NodeFailure
from pumpline.tools.verbs.holds import holds_of

METRICS = (
    "nsqd_disk_free_ratio",
    "process_open_fds",
    "process_max_fds",
    "nsqd_write_failures_total",
    "nsqd_fsync_failures_total",
)
NO_TOPIC = "-"  # metrics of the process alone; those of topics may be many

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
_LOOKUPD = re.compile(r'address="([^"]*)"')


@dataclass(slots=True, kw_only=True)
class SeenProcess:
    """An nsqd that answers."""

    address: str
    version: str
    broadcast: str  # <host>:<port>, for clients
    unreachable: str | None = None  # why clients cannot connect there; None: they can
    clock_ahead_s: float | None = None
    stats: SeenNode = field(default_factory=SeenNode)
    holds: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    lost_lookupds: list[str] = field(default_factory=list)  # that it is not connected to


@dataclass(slots=True, kw_only=True)
class SeenLookupd:
    """An nsqlookupd that answers."""

    address: str
    version: str
    nodes: list[str]  # HTTP addresses of the nsqds it knows
    clock_ahead_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Evidence:
    processes: list[SeenProcess] = field(default_factory=list)
    lookupds: list[SeenLookupd] = field(default_factory=list)
    node_failures: dict[str, str] = field(default_factory=dict)
    lookupd_failures: dict[str, str] = field(default_factory=dict)
    token_file: str = ""
    token_file_mode: int | None = None


def gather_evidence(cluster: ClusterClient, token_file: str, timeout_s: float) -> Evidence:
    found = cluster.discover()
    evidence = Evidence(token_file=token_file, lookupd_failures=found.failures)
    if token_file:
        evidence.token_file_mode = stat.S_IMODE(os.stat(token_file).st_mode)
    lookupds = [each for each in cluster.lookupds if each.address in found.by_node]
    answers = cluster.each(lookupds, _look_at_lookupd)
    for address, seen in answers.by_node.items():
        seen.nodes = sorted(node.address for node in found.by_node[address])
        evidence.lookupds.append(seen)
    evidence.lookupd_failures.update(answers.failures)
    looked = cluster.each(unique(found), lambda node: _look_at_node(node, timeout_s))
    evidence.processes = list(looked.by_node.values())
    evidence.node_failures = looked.failures
    return evidence


def _look_at_lookupd(lookupd: ClusterNode) -> SeenLookupd:
    info: Any = lookupd.get_json("/info")
    return SeenLookupd(
        address=lookupd.address,
        version=str(info.get("version", "")),
        nodes=[],
        clock_ahead_s=_clock_ahead_s(lookupd),
    )


def _look_at_node(node: ClusterNode, timeout_s: float) -> SeenProcess:
    info: Any = node.get_json("/info")
    clock_ahead_s = _clock_ahead_s(node)
    host, port = str(info.get("broadcast_address", "")), int(info.get("tcp_port", 0))
    process = SeenProcess(
        address=node.address,
        version=str(info.get("version", "")),
        broadcast=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        clock_ahead_s=clock_ahead_s,
        stats=read_stats(node),
    )
    process.unreachable = _unreachable(process.broadcast, timeout_s)
    try:
        process.holds = holds_of(node, None) or []
    except NodeFailure as failure:
        if failure.status not in (401, 403):  # holds are for those with an access token
            raise
    _read_metrics(node, process)
    return process


def _clock_ahead_s(node: ClusterNode) -> float | None:
    """By the `Date` of the last answer, which has whole seconds; 0.0 if it may be right."""
    try:
        told_s = parsedate_to_datetime(node.answer_date).timestamp()
    except (TypeError, ValueError):
        return None
    now_s = time.time()
    if now_s - node.answer_took_s - 1.0 <= told_s <= now_s:
        return 0.0
    return told_s + 0.5 - now_s


def _unreachable(address: str, timeout_s: float) -> str | None:
    try:
        host, port = split_address(address)
        with socket.create_connection((host, port), timeout_s):
            return None
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except UnicodeError:
        return "this is not the name of a host"
    except (OSError, ValueError) as error:
        return (isinstance(error, OSError) and error.strerror) or str(error)


def _read_metrics(node: ClusterNode, process: SeenProcess) -> None:
    try:
        text = node.get("/metrics", {"topic": NO_TOPIC}).decode(errors="replace")
    except NodeFailure as failure:
        if failure.status == 404:  # a stock nsqd
            return
        raise
    for name, labels, value in _SAMPLE.findall(text):
        if name in METRICS:
            process.metrics[name] = float(value)
        elif name == "nsqd_lookupd_connected" and float(value) == 0:
            process.lost_lookupds += _LOOKUPD.findall(labels)
