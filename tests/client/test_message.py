"""What a message says, and what log lines say of it."""

import asyncio
import logging

import pytest

from pumpline.client import Consumer, Message, Producer, Retry, Settings
from tests.kit.client.consuming import CHANNEL, publish, until
from tests.kit.daemons import Nsqd


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_bodies_are_logged_at_debug_only(
    nsqd: Nsqd,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    level: int,
) -> None:
    publish(nsqd, topic, [b"confidential"])
    settings = Settings(requeue_delay_s=0, backoff_max_s=0)
    consumer = Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        max_attempts=3,
        giving_up="drop",
        settings=settings,
    )
    begun: list[Message] = []

    async def handle(message: Message) -> None:
        begun.append(message)
        if message.attempts == 1:
            raise Retry(0)
        raise ValueError("bad")

    with caplog.at_level(level, "pumpline.client"):
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.counters.given_up == 1)
        await consumer.stop()
        await running
    assert ("confidential" in caplog.text) == (level == logging.DEBUG)
    message = begun[0]
    assert f"<Message {message.id} of {topic}/{CHANNEL} attempts=4 bytes=12>" in caplog.text


async def test_what_a_message_says(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [])
    value = {"order": 1, "name": "Zoë", "lines": [1.5, None]}
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_json(topic, value)
        with pytest.raises(ValueError, match="not JSON compliant"):
            await producer.publish_json(topic, float("nan"))
        with pytest.raises(TypeError, match="not JSON serializable"):
            await producer.publish_json(topic, b"bytes")
    async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
        message = await anext(aiter(consumer))
        assert message.json() == value
        assert message.body == '{"order":1,"name":"Zoë","lines":[1.5,null]}'.encode()
        where = (message.topic, message.channel, message.node)
        assert where == (topic, CHANNEL, nsqd.tcp_address)
        message.finish()
