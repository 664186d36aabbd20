"""What the doctor looks at: every node and nsqlookupd, asked once, and the token file.

Stock daemons say less; what they do not say is None, and not held against them. Must not judge.
"""

import os
import socket
import stat
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from pumpline.cluster.client import ClusterClient, unique
from pumpline.cluster.directory import RegisteredNode
from pumpline.cluster.health import read_process
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.cluster.stats import SeenNode, read_stats
from pumpline.core.text.addresses import split_address
from pumpline.tools.verbs.holds import holds_of


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
    lookupds = [each for each in cluster.lookupds if each.address in found.answers]
    answers = cluster.each(lookupds, _look_at_lookupd)
    for address, seen in answers.answers.items():
        seen.nodes = sorted(node.address for node in found.answers[address])
        evidence.lookupds.append(seen)
    evidence.lookupd_failures.update(answers.failures)
    looked = cluster.each(unique(found), lambda node: _look_at_node(node, timeout_s))
    evidence.processes = list(looked.answers.values())
    evidence.node_failures = looked.failures
    return evidence


def _look_at_lookupd(lookupd: ClusterNode) -> SeenLookupd:
    info = lookupd.get_as(dict[str, Any], "/info")
    return SeenLookupd(
        address=lookupd.address,
        version=str(info.get("version", "")),
        nodes=[],
        clock_ahead_s=_clock_ahead_s(lookupd),
    )


def _look_at_node(node: ClusterNode, timeout_s: float) -> SeenProcess:
    info = node.get_as(RegisteredNode, "/info")
    clock_ahead_s = _clock_ahead_s(node)
    process = SeenProcess(
        address=node.address,
        version=info.version,
        broadcast=info.tcp_address,
        clock_ahead_s=clock_ahead_s,
        stats=read_stats(node),
    )
    process.unreachable = _unreachable(process.broadcast, timeout_s)
    try:
        process.holds = holds_of(node, None) or []
    except NodeFailure as failure:
        if failure.status not in (401, 403):  # holds are for those with an access token
            raise
    figures = read_process(node)
    process.metrics, process.lost_lookupds = figures.by_name, figures.lost_lookupds
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
