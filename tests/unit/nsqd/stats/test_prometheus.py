"""A scrape of many topics or channels leaves the event loop to others in between."""

import asyncio
from pathlib import Path

import pytest

from pumpline.nsqd.broker import Broker
from pumpline.nsqd.options import Options
from pumpline.nsqd.stats.memory import Memory
from pumpline.nsqd.stats.prometheus import Metrics
from pumpline.nsqd.stats.stats import Selection
from pumpline.web import yielding
from pumpline.web.prometheus_text import Exposition
from tests.kit.fake_broker import FakeBroker, turns_during

TOPICS = 50
CHANNELS = 50


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    fake = FakeBroker(tmp_path)
    broker = Broker(fake.options, fake.tick, fake.disk)
    for number in range(TOPICS):
        broker.topics.ensure(f"t{number}")
    return broker


async def test_others_get_their_turn_between_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", 0.0)
    metrics = Metrics(broker, memory=Memory(), http=[])
    _, turns = await turns_during(metrics._add_topics(Exposition(), Selection()))
    assert turns >= TOPICS


async def test_a_topic_deleted_meanwhile_is_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", 0.0)
    exposition = Exposition()
    metrics = Metrics(broker, memory=Memory(), http=[])
    scrape = asyncio.create_task(metrics._add_topics(exposition, Selection()))
    await asyncio.sleep(0)
    for name in list(broker.topics):
        broker.topics.delete(name)
    await scrape
    told = b"".join(exposition.pieces(openmetrics=False)).decode()
    assert 0 < told.count("nsqd_topic_depth{") < TOPICS


@pytest.mark.parametrize("percentiles", [[], [0.5]])
async def test_others_get_their_turn_between_the_channels_of_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percentiles: list[float]
) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", 0.0)
    fake = FakeBroker(tmp_path, Options(e2e_processing_latency_percentile=percentiles))
    broker = Broker(fake.options, fake.tick, fake.disk)
    topic = broker.topics.ensure("t")
    for number in range(CHANNELS):
        topic.ensure_channel(f"c{number}")
    exposition = Exposition()
    metrics = Metrics(broker, memory=Memory(), http=[])
    _, turns = await turns_during(metrics._add_topics(exposition, Selection()))
    assert turns >= CHANNELS * (1 + len(percentiles))
    told = b"".join(exposition.pieces(openmetrics=False)).decode()
    assert told.count("nsqd_channel_depth{") == CHANNELS


async def test_a_channel_deleted_meanwhile_is_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", 0.0)
    topic = broker.topics["t0"]
    for number in range(CHANNELS):
        topic.ensure_channel(f"c{number}")
    exposition = Exposition()
    metrics = Metrics(broker, memory=Memory(), http=[])
    scrape = asyncio.create_task(metrics._add_topics(exposition, Selection(topic="t0")))
    await asyncio.sleep(0)
    for name in list(topic.channels):
        topic.delete_channel(name)
    await scrape
    told = b"".join(exposition.pieces(openmetrics=False)).decode()
    assert told.count("nsqd_channel_depth{") < CHANNELS
