"""Zones and regions over the wire: who is served first, and the counters that tell."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import await_channel
from tests.kit.wire.commands import identify
from tests.kit.wire.session import Connect

pytestmark = pytest.mark.deviation  # newer than the release it is compared with

NSQD_FLAGS = (
    "--enable-experiment=topology-aware-consumption",
    "--topology-zone=z1",
    "--topology-region=r1",
)
COUNTERS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


def test_near_consumers_come_first_and_all_figures_say_so(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    far, middle, near = connect(), connect(), connect()
    far.subscribe(topic, "c", ready=2)
    middle.subscribe(topic, "c", ready=2, topology_region="r1", topology_zone="z2")
    near.subscribe(topic, "c", ready=3, topology_region="r1", topology_zone="z1")
    for session in (far, middle, near):
        assert session.before_barrier() == []
    producer = connect()
    producer.publish(topic, *(b"%d" % n for n in range(6)))
    assert [message.body for message in near.messages(3)] == [b"0", b"1", b"2"]
    assert [message.body for message in middle.messages(2)] == [b"3", b"4"]
    assert far.message().body == b"5"
    channel = await_channel(nsqd, topic, "c", in_flight_count=6)
    assert [channel[name] for name in COUNTERS] == [3, 2, 1]
    shown = {
        client["topology_zone"]: client for client in nsqd.channel_stats(topic, "c")["clients"]
    }
    assert shown["z1"]["zone_local_msg_count"] == 3
    assert shown["z2"]["region_local_msg_count"] == 2
    assert shown[""]["global_msg_count"] == 1
    text = nsqd.http("GET", f"/stats?topic={topic}")[1].decode()
    assert re.search(r"msgs: 6 +zone: 3 +region: 2 +global: 1 +e2e%: \n", text)
    scraped = text_string_to_metric_families(
        nsqd.http("GET", f"/metrics?topic={topic}")[1].decode()
    )
    found = {
        sample.labels["locality"]: sample.value
        for family in scraped
        for sample in family.samples
        if sample.name == "nsqd_channel_delivered_messages_total"
    }
    assert found == {"zone": 3, "region": 2, "global": 1}


def test_a_client_is_told_where_nsqd_is(connect: Connect) -> None:
    answer = connect().request(identify({"feature_negotiation": True}))
    assert b'"topology_zone":"z1"' in answer.data
    assert b'"topology_region":"r1"' in answer.data


def test_off_there_are_no_such_counters(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--topology-zone=z1"]) as nsqd, nsqd.connect() as client:
        client.sub("t", "c")
        client.publish("t", b"x")
        client.rdy(1)
        client.read_message()
        assert not set(COUNTERS) & set(nsqd.channel_stats("t", "c"))
