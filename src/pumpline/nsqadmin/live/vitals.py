"""What an nsqd says of itself beside its figures: its host, whether it is ours, its disk.

The disk is in /metrics, which a Go nsqd does not have. It is asked for no topic, so that the answer
is short whatever the node has.
"""

import re

import msgspec

from pumpline.nsqadmin.cluster.upstream import Upstream, UpstreamError

NO_TOPIC = {"topic": "!"}  # no name of a topic

_VERSION = re.compile(r'^nsqd_build_info\{[^}\n]*pumpline="([^"\n]*)"', re.MULTILINE)
_FREE = re.compile(r"^nsqd_disk_free_bytes ([0-9.e+]+)$", re.MULTILINE)
_TOTAL = re.compile(r"^nsqd_disk_bytes ([0-9.e+]+)$", re.MULTILINE)


class Vitals(msgspec.Struct):
    hostname: str = ""
    pumpline: str | None = None
    disk_free: int | None = None
    disk_total: int | None = None


class NodeInfo(msgspec.Struct):
    hostname: str = ""


async def read_vitals(upstream: Upstream, address: str) -> Vitals:
    info = await upstream.get_as(NodeInfo, address, "/info", {})
    vitals = Vitals(hostname=info.hostname)
    try:
        metrics = (await upstream.get(address, "/metrics", NO_TOPIC)).decode(errors="replace")
    except UpstreamError as error:
        if error.status == 404:
            return vitals
        raise
    if version := _VERSION.search(metrics):
        vitals.pumpline = version[1]
    free, total = _FREE.search(metrics), _TOTAL.search(metrics)
    if free and total:
        vitals.disk_free, vitals.disk_total = int(float(free[1])), int(float(total[1]))
    return vitals
