"""The figures of a topic with many channels leave the event loop to others in between."""

import asyncio
from pathlib import Path

import pytest

from pumpline.nsqd.broker import Broker
from pumpline.nsqd.stats.stats import Selection, gather
from pumpline.web import yielding
from tests.kit.fake_broker import FakeBroker, turns_during

CHANNELS = 50


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(yielding, "SLICE_S", -1.0)  # everything takes longer than that
    fake = FakeBroker(tmp_path)
    broker = Broker(fake.options, fake.tick, fake.disk)
    topic = broker.topics.topic("t")
    for number in range(CHANNELS):
        topic.channel(f"c{number:02}")
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
