"""The figures of /stats; those of many channels leave the event loop to others in between."""

import asyncio
from pathlib import Path

import pytest

from pumpline.nsqd.broker import Broker
from pumpline.nsqd.options import Options
from pumpline.nsqd.stats.stats import Selection, gather
from pumpline.web import yielding
from tests.kit.fake_broker import FakeBroker, turns_during

CHANNELS = 50


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(yielding, "SLICE_S", -1.0)  # everything takes longer than that
    fake = FakeBroker(tmp_path)
    broker = Broker(fake.options, fake.tick, fake.disk)
    topic = broker.topics.ensure("t")
    for number in range(CHANNELS):
        topic.ensure_channel(f"c{number:02}")
    return broker


async def test_others_get_their_turn_between_channels(broker: Broker) -> None:
    stats, turns = await turns_during(gather(broker, Selection(), None))
    assert stats.topics is not None
    assert [each.channel_name for each in stats.topics[0].channels] == sorted(
        broker.topics["t"].channels
    )
    assert turns >= CHANNELS


async def test_a_channel_deleted_meanwhile_is_left_out(broker: Broker) -> None:
    gathering = asyncio.create_task(gather(broker, Selection(), None))
    await asyncio.sleep(0)
    broker.topics["t"].delete_channel("c49")
    stats = await gathering
    assert stats.topics is not None
    assert [each.channel_name for each in stats.topics[0].channels][-1] == "c48"


async def test_what_is_beyond_the_memory_queue_is_the_backend_s(tmp_path: Path) -> None:
    """As in NSQ; what of it is in memory here depends on the bytes, and is nobody's business."""
    fake = FakeBroker(tmp_path, Options(mem_queue_size=10))
    broker = Broker(fake.options, fake.tick, fake.disk)
    with_channel, without = broker.topics.ensure("a"), broker.topics.ensure("b")
    channel = with_channel.ensure_channel("c")
    for topic in (with_channel, without, broker.topics.ensure("e#ephemeral")):
        for _ in range(12):
            fake.publish(topic, b"x")
    consumer, _ = fake.consume(channel, rdy=1)

    async def depths() -> list[tuple[int, int]]:
        stats = await gather(broker, Selection(), None)
        assert stats.topics is not None
        parts = [part for topic in stats.topics for part in (topic, *topic.channels)]
        return [(part.depth, part.backend_depth) for part in parts]

    assert await depths() == [(0, 0), (11, 1), (12, 2), (10, 0)]
    fake.finish(consumer, 0)
    assert await depths() == [(0, 0), (10, 0), (12, 2), (10, 0)]
