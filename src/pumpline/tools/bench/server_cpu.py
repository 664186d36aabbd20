"""The CPU time of an nsqd: from its /metrics, or from /proc if it runs on this machine.

Stock nsqds have no /metrics. The process is the one that listens on nsqd's TCP port; it can be
found by its owner and by root.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pumpline.cluster.node import ClusterNode, NodeFailure

CpuClock = Callable[[], float | None]

_METRIC = re.compile(rb"^process_cpu_seconds_total (\S+)$", re.M)
_LISTENS = "0A"


def cpu_clock(node: ClusterNode, topic: str, tcp_address: str) -> CpuClock:
    """Returns the CPU time so far, in seconds; None if it cannot be known."""

    def from_metrics() -> float | None:
        try:
            found = _METRIC.search(node.get("/metrics", {"topic": topic}))
        except NodeFailure:
            return None
        return float(found[1]) if found else None

    if from_metrics() is not None:
        return from_metrics
    host, _, port = tcp_address.rpartition(":")
    pid = _listening_pid(int(port)) if _is_here(host) else None
    return lambda: _cpu_s(pid) if pid is not None else None


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listening_pid(port: int) -> int | None:
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it is somebody else's, or has ended
                if any(os.readlink(fd) in sockets for fd in (process / "fd").iterdir()):
                    return int(process.name)
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (Path("/proc/net") / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _cpu_s(pid: int) -> float | None:
    try:
        # The name of the program, in brackets, may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
