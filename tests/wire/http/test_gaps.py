"""Offsets that nsqd leaves out after a loss of power: no client meets them."""

import json
import subprocess
import sys
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import pytest

from pumpline.cluster.access import NodeAccess
from pumpline.cluster.log import offsets_of
from pumpline.cluster.node import ClusterNode
from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_channel
from tests.kit.wire.session import Connect

pytestmark = pytest.mark.deviation  # NSQ has no offsets

BODIES = [b"body %d" % number for number in range(20)]


@pytest.fixture
def gapped(own_nsqd: Nsqd, connect: Connect) -> Nsqd:
    """Has topic `t` with ten messages, a gap, and ten more; channel `c` and hold `h` have all."""
    own_nsqd.start()
    act(own_nsqd, "/topic/create", topic="t")
    act(own_nsqd, "/channel/create", topic="t", channel="c")
    act(own_nsqd, "/hold/create", topic="t", hold="h")
    connect(own_nsqd).raw.mpub("t", BODIES[:10])
    own_nsqd.restart_after_power_loss()
    connect(own_nsqd).raw.mpub("t", BODIES[10:])
    return own_nsqd


def ask(nsqd: Nsqd, method: str, path: str, **params: object) -> dict[str, Any]:
    status, body = nsqd.http(method, f"{path}?{urlencode({'topic': 't', **params})}")
    assert status == 200, body
    return dict(json.loads(body))


def peeked(nsqd: Nsqd, **params: object) -> list[bytes]:
    found = ask(nsqd, "GET", "/log/peek", **params)["messages"]
    return [each["body"].encode() for each in found]


def test_depths_count_messages_and_not_offsets(gapped: Nsqd) -> None:
    assert gapped.channel_stats("t", "c")["depth"] == 20
    (hold,) = ask(gapped, "GET", "/hold/list")["holds"]
    assert (hold["offset"], hold["depth"]) == (0, 20)
    metrics = gapped.http("GET", "/metrics")[1]
    assert b'nsqd_hold_depth{topic="t",hold="h"} 20\n' in metrics


def test_a_look_into_the_log_goes_on_behind_the_gap(gapped: Nsqd) -> None:
    ((start, end),) = ask(gapped, "GET", "/log/offsets")["gaps"]
    assert start == 10 and end > 1000
    assert peeked(gapped, **{"from": 8, "limit": 4}) == BODIES[8:12]
    assert peeked(gapped, **{"from": 1000, "limit": 2}) == BODIES[10:12]
    assert peeked(gapped, newest="true", limit=15) == BODIES[:4:-1]


def test_a_seek_lands_on_messages(gapped: Nsqd) -> None:
    ((_, end),) = ask(gapped, "GET", "/log/offsets")["gaps"]
    (after,) = ask(gapped, "GET", "/log/peek", **{"from": end, "limit": 1})["messages"]
    for where, depth in (
        ({"time": after["timestamp"]}, 10),
        ({"time": after["timestamp"] - 1}, 10),
        ({"offset": 1000}, 10),
        ({"offset": 9}, 11),
        ({"to": "beginning"}, 20),
        ({"to": "end"}, 0),
    ):
        answer = ask(gapped, "POST", "/channel/seek", channel="c", **where)
        assert answer["depth"] == gapped.channel_stats("t", "c")["depth"] == depth, where


def test_a_consumer_gets_all_and_its_place_survives_a_restart(
    gapped: Nsqd, connect: Connect
) -> None:
    consumer = connect(gapped)
    consumer.subscribe("t", "c", ready=15)
    messages = consumer.messages(15)
    assert [message.body for message in messages] == BODIES[:15]
    consumer.finish(*messages)
    await_channel(gapped, "t", "c", depth=0, in_flight_count=5)
    consumer.close()
    seek = {"channel": "c", "to": "beginning", "dry_run": "true"}
    answer = ask(gapped, "POST", "/channel/seek", **seek)
    assert (answer["depth"], answer["again"]) == (20, 15)
    gapped.restart()
    assert gapped.channel_stats("t", "c")["depth"] == 5


@pytest.mark.parametrize("when_full", ["reject", "drop-oldest"])
def test_a_bound_of_the_backlog_counts_messages(
    own_nsqd: Nsqd, connect: Connect, when_full: str
) -> None:
    own_nsqd.start()
    for topic in ("t", "no_channel"):
        act(own_nsqd, "/topic/create", topic=topic)
        body = json.dumps({"max_depth": 20, "when_full": when_full}).encode()
        status, said = own_nsqd.http("POST", f"/topic/settings?topic={topic}", body)
        assert status == 200, said
    act(own_nsqd, "/channel/create", topic="t", channel="c")
    for topic in ("t", "no_channel"):
        connect(own_nsqd).raw.mpub(topic, BODIES[:10])
    own_nsqd.restart_after_power_loss()
    for topic in ("t", "no_channel"):
        connect(own_nsqd).raw.mpub(topic, BODIES[10:])
        act(own_nsqd, "/channel/create", topic=topic, channel="c")
        assert own_nsqd.channel_stats(topic, "c")["depth"] == 20


def test_the_tools_count_and_show_messages(gapped: Nsqd) -> None:
    with closing(ClusterNode(gapped.http_address, NodeAccess(timeout_s=60))) as node:
        offsets = offsets_of(node, "t")
    assert offsets is not None and offsets.messages == 20
    tail = [sys.executable, "-m", "pumpline.tools.nsq_tail.command", "--topic=t", "--peek", "-n=15"]
    tail.append(f"--nsqd-http-address={gapped.http_address}")
    shown = subprocess.run(tail, capture_output=True, check=True).stdout
    assert shown.splitlines() == BODIES[5:]
