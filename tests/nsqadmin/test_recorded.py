"""Every route of NSQ's nsqadmin that reads: the JSON is what NSQ's own said of the same cluster.

Two Go nsqds, an nsqlookupd and two nsqadmins of 1.3.0 were recorded: one consumer, a paused
channel, a deferred message, latencies, a topic on one node, two topics that no node has.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.nsqadmin.process import Nsqadmin, lookupd_flags, nsqd_flags
from tests.kit.nsqadmin.upstreams import RecordedCluster

PATHS = (
    "/api/topics",
    "/api/topics?inactive=true",
    "/api/topics/orders",
    "/api/topics/alone",
    "/api/topics/nope",
    "/api/topics/old",
    "/api/topics/orders/billing",
    "/api/topics/orders/mail",
    "/api/topics/orders/nope",
    "/api/topics/nope/x",
    "/api/nodes",
    "/api/nodes/<A>",
    "/api/nodes/<B>",
    "/api/nodes/zzz",
    "/api/counter",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as recorded:
        yield recorded


@pytest.fixture(scope="module", params=["admin", "direct"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ours(
    cluster: RecordedCluster, mode: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqadmin]:
    addresses = [fake.address for fake in cluster.nsqds.values()]
    flags = lookupd_flags([cluster.lookupd.address]) if mode == "admin" else nsqd_flags(addresses)
    with Nsqadmin(Path(tmp_path_factory.mktemp("nsqadmin")) / "log", flags) as admin:
        yield admin


@pytest.mark.parametrize("path", PATHS)
def test_the_json_is_nsqs(cluster: RecordedCluster, mode: str, ours: Nsqadmin, path: str) -> None:
    for name, fake in cluster.nsqds.items():
        path = path.replace(f"<{name}>", fake.address)
    status, body = cluster.said(mode)[path]
    answer = ours.ask(path)
    assert answer.status == status
    expected, got = json.loads(body), answer.json()
    forget_time(expected)
    forget_time(got)
    forget_faults(expected, got)
    assert got == expected
    assert list(got) == list(expected)  # the same order, too


def forget_time(value: Any) -> None:
    """How long a client is connected depends on when one asks."""
    for each in objects(value):
        if "connected" in each:
            assert each.pop("connected") % 1_000_000_000 == 0


def forget_faults(theirs: Any, ours: Any) -> None:
    """NSQ puts the sums of a topic's channels into its first node, leaves that one out of the sums'
    parts, and takes the smallest maximum for the minimum of latencies."""
    for each in (*objects(theirs), *objects(ours)):
        if "quantile" in each:
            each.pop("min")
    if "channels" in theirs and "nodes" in theirs:
        for value in (theirs, ours):
            for channel in value["channels"]:
                channel.pop("nodes")
            for node in value["nodes"]:
                for channel in node["channels"]:
                    channel.clear()
        for value in (theirs, ours):
            value["channels"].sort(key=lambda channel: channel["channel_name"])
            value["nodes"].sort(key=lambda node: node["node"])
            for each in value["channels"]:
                forget_unknown_latencies(each)
    for value in (theirs, ours):
        if isinstance(value.get("nodes"), list):
            value["nodes"].sort(key=lambda node: json.dumps(node.get("node", node)))
        if isinstance(value.get("topics"), list) and isinstance(value["topics"][0], dict):
            value["topics"].sort(key=lambda topic: topic["topic_name"])


def forget_unknown_latencies(channel: dict[str, Any]) -> None:
    """Whether a percentile has the `value` of its node depends on which node came first."""
    for each in objects(channel):
        each.pop("value", None)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects(each)
