"""How well a node is: the figures of its process in /metrics, and from where on they are bad.

`pumpline doctor` and nsqadmin judge by these rules, and word what they find. A Go nsqd has no
/metrics: it is not judged by what it does not say.
"""

import re
from enum import IntEnum

import msgspec

from pumpline.cluster.node import ClusterNode, NodeFailure

DISK_WARNING_RATIO = 0.15
DISK_CRITICAL_RATIO = 0.05
DESCRIPTORS_WARNING_RATIO = 0.80
DESCRIPTORS_CRITICAL_RATIO = 0.95
NO_TOPIC = {"topic": "!"}  # no name of a topic: figures of topics may be many

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
_LOOKUPD = re.compile(r'address="([^"]*)"')
_PUMPLINE = re.compile(r'pumpline="([^"]*)"')


class Level(IntEnum):
    """Also the exit code of monitoring checks."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


class ProcessFigures(msgspec.Struct, kw_only=True):
    """/metrics of a node, as far as it is about its process."""

    pumpline: str | None = None  # the version; None for a Go nsqd
    by_name: dict[str, float] = {}  # without labels
    lost_lookupds: list[str] = []  # that it is not connected to

    def whole(self, name: str) -> int | None:
        value = self.by_name.get(name)
        return None if value is None else int(value)


def read_process(node: ClusterNode) -> ProcessFigures:
    try:
        text = node.get("/metrics", NO_TOPIC).decode(errors="replace")
    except NodeFailure as failure:
        if failure.status == 404:
            return ProcessFigures()
        raise
    figures = ProcessFigures()
    for name, labels, value in _SAMPLE.findall(text):
        if name == "nsqd_build_info":
            version = _PUMPLINE.search(labels)
            figures.pumpline = version[1] if version else None
        elif name == "nsqd_lookupd_connected" and float(value) == 0:
            figures.lost_lookupds += _LOOKUPD.findall(labels)
        elif not labels:
            figures.by_name[name] = float(value)
    return figures


def is_unwell(health: str) -> bool:
    """By the `health` of /stats, which has the error of the last write."""
    return health not in ("", "OK")


def is_deserted(*, waiting: int, consumers: int, is_hold: bool = False) -> bool:
    """Messages wait in a channel that nobody consumes. A hold has no consumers."""
    return bool(waiting) and not consumers and not is_hold


def disk_level(free_ratio: float) -> Level:
    if free_ratio < DISK_CRITICAL_RATIO:
        return Level.CRITICAL
    return Level.WARNING if free_ratio < DISK_WARNING_RATIO else Level.OK


def descriptor_level(*, used: float, most: float) -> Level:
    if most <= 0 or used / most < DESCRIPTORS_WARNING_RATIO:
        return Level.OK
    return Level.CRITICAL if used / most >= DESCRIPTORS_CRITICAL_RATIO else Level.WARNING
