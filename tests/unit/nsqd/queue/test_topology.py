"""Near consumers are served first, and nobody waits for them."""

from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topology import EXPERIMENT, Delivered, Locality, locality_of
from tests.kit.fake_broker import FakeBroker, Sink

ZONE, REGION, GLOBAL = Locality


def aware() -> Options:
    return Options(enable_experiment=[EXPERIMENT], topology_zone="z1", topology_region="r1")


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, aware())


def received(sink: Sink) -> int:
    return len(sink.received)


@pytest.mark.parametrize(
    ("zone", "region", "expected"),
    [
        ("z1", "r1", ZONE),
        ("z1", "elsewhere", ZONE),
        ("z2", "r1", REGION),
        ("", "r1", REGION),
        ("z2", "r2", GLOBAL),
        ("", "", GLOBAL),
    ],
)
def test_names_tell_how_near_a_client_is(zone: str, region: str, expected: Locality) -> None:
    assert locality_of(zone, region, aware()) is expected


def test_without_a_name_of_its_own_nobody_is_near() -> None:
    assert locality_of("", "", Options()) is GLOBAL


def test_the_nearest_with_credit_gets_the_message(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, far = broker.consume(channel, rdy=2, locality=GLOBAL)
    _, middle = broker.consume(channel, rdy=2, locality=REGION)
    _, near = broker.consume(channel, rdy=2, locality=ZONE)
    seen = []
    for _ in range(7):
        broker.publish(topic, b"x")
        seen.append((received(near), received(middle), received(far)))
    assert seen == [(1, 0, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0), (2, 2, 1), (2, 2, 2), (2, 2, 2)]
    assert channel.depth == 1


def test_credit_that_comes_back_comes_first_again(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.consume(channel, rdy=5, locality=GLOBAL)
    near, sink = broker.consume(channel, rdy=1, locality=ZONE)
    broker.publish(topic, b"a", b"b")
    [(offset, _, _)] = sink.take()
    broker.finish(near, offset)
    broker.publish(topic, b"c")
    assert [body for _, _, body in sink.take()] == [b"c"]


def test_those_equally_near_share(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    sinks = [broker.consume(channel, rdy=10, locality=ZONE)[1] for _ in range(2)]
    broker.consume(channel, rdy=10, locality=GLOBAL)
    broker.publish(topic, *[b"x"] * 10)
    assert sum(received(sink) for sink in sinks) == 10
    assert all(received(sink) for sink in sinks)


def test_deliveries_are_counted_by_how_near_they_went(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    near, _ = broker.consume(channel, rdy=3, locality=ZONE)
    broker.consume(channel, rdy=2, locality=REGION)
    broker.consume(channel, rdy=9, locality=GLOBAL)
    broker.publish(topic, *[b"x"] * 6)
    assert channel.delivered == Delivered(zone=3, region=2, globally=1)
    channel.remove(near)
    broker.run()
    # Its three go out again, to the one with credit left; what it was given still counts.
    assert channel.delivered == Delivered(zone=3, region=2, globally=4)


def test_off_nobody_is_preferred_and_nothing_is_counted(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(topology_zone="z1"))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, far = broker.consume(channel, rdy=5, locality=GLOBAL)
    _, near = broker.consume(channel, rdy=5, locality=ZONE)
    broker.publish(topic, *[b"x"] * 4)
    assert received(far) and received(near)
    assert channel.delivered is None
