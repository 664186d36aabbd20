"""Messages that were delivered too often: published to the dead-letter topic, dropped, or kept."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pumpline import sync
from pumpline.client import Consumer, Message, Settings
from tests.kit.auth_server import AuthorityServer, grant
from tests.kit.client.consuming import CHANNEL, left, publish, take, until
from tests.kit.daemons import Nsqd, wait_until

AT_ONCE = Settings(requeue_delay_s=0, backoff_max_s=0)


def letters(nsqd: Nsqd, topic: str) -> list[dict[str, object]]:
    """All messages of the topic; none if there is no such topic."""
    status, body = nsqd.http("GET", f"/log/peek?topic={topic}&limit=100")
    if status == 404:
        return []
    assert status == 200, body
    return list(json.loads(body)["messages"])


def letter(nsqd: Nsqd, topic: str) -> dict[str, object]:
    """What the one letter of the topic says."""
    [message] = letters(nsqd, f"{topic}.dlq")
    return dict(json.loads(str(message["body"])))


async def fail(message: Message) -> None:
    raise ValueError("no such customer")


async def run_until_finished(consumer: Consumer, handler: object = fail, count: int = 1) -> None:
    running = asyncio.create_task(consumer.run(handler))  # type: ignore[arg-type]
    await until(lambda: consumer.counters.finished == count)
    await consumer.stop()
    await running


async def test_a_message_that_fails_each_time_becomes_a_dead_letter(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, [b"bad"])
    seen: list[Message] = []

    async def handle(message: Message) -> None:
        seen.append(message)
        await fail(message)

    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=2, settings=AT_ONCE)
    await run_until_finished(consumer, handle)
    assert [message.attempts for message in seen] == [1, 2]
    assert left(nsqd, topic) == 0
    assert letter(nsqd, topic) == {
        "topic": topic,
        "channel": CHANNEL,
        "id": seen[0].id,
        "attempts": 3,
        "timestamp": seen[0].timestamp_ns,
        "body": "bad",
    }
    assert consumer.counters.given_up == 1
    assert "giving up <Message" in caplog.text


async def test_a_body_that_is_no_text_is_in_base64(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"\xff\x00"])
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, settings=AT_ONCE)
    await run_until_finished(consumer)
    assert letter(nsqd, topic)["body_base64"] == "/wA="


async def test_a_letter_over_the_limit_of_nsqd_is_the_body_alone(nsqd: Nsqd, topic: str) -> None:
    body = b"x" * (1 << 20)  # --max-msg-size
    publish(nsqd, topic, [body, b"small"])
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, settings=AT_ONCE)
    await run_until_finished(consumer, count=2)
    written = sorted(len(str(each["body"])) for each in letters(nsqd, f"{topic}.dlq"))
    assert written[1] == len(body)
    assert consumer.counters.connects == 1


def test_a_consumer_without_asyncio_writes_dead_letters_too(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"bad"])

    def handle(message: Message) -> None:
        raise ValueError("no such customer")

    with sync.Consumer(
        topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, settings=AT_ONCE
    ) as consumer:
        next(iter(consumer)).requeue(0)
        list(consumer.messages(idle_s=0.2))
        wait_until(lambda: left(nsqd, topic) == 0)
    assert letter(nsqd, topic)["body"] == "bad"


async def test_a_message_that_cannot_become_a_dead_letter_is_requeued(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Here because the consumer may not publish."""
    allowed = ["subscribe"]

    def rows() -> dict[str, object]:
        return {"topic": ".*", "channels": [".*"], "permissions": allowed}

    with (
        AuthorityServer(lambda asked: grant(rows())) as server,
        Nsqd(tmp_path / "data", [f"--auth-http-address={server.address}"]) as nsqd,
    ):
        nsqd.http("POST", f"/topic/create?topic={topic}")
        nsqd.http("POST", f"/channel/create?topic={topic}&channel={CHANNEL}")
        nsqd.http("POST", f"/pub?topic={topic}", b"bad")
        consumer = Consumer(
            topic,
            CHANNEL,
            nsqd=nsqd.tcp_address,
            max_attempts=1,
            settings=replace(AT_ONCE, auth_secret="s"),
        )
        running = asyncio.create_task(consumer.run(fail))
        await until(lambda: consumer.counters.given_up >= 2)
        assert consumer.counters.finished == 0
        assert left(nsqd, topic) == 1
        allowed.append("publish")  # as of the next connection
        await until(lambda: consumer.counters.finished == 1)
        await consumer.stop()
        await running
        settings = consumer.settings
        async with Consumer(f"{topic}.dlq", "look", nsqd=nsqd.tcp_address, settings=settings) as c:
            [written] = await take(c, 1)
            assert json.loads(written.body)["body"] == "bad"
            written.finish()
    assert "was not given up, and is requeued: E_UNAUTHORIZED" in caplog.text
    assert consumer.counters.connects == 1  # the refusals did not close the subscription


async def test_a_message_can_be_dropped(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, [b"bad"])
    consumer = Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        max_attempts=1,
        giving_up="drop",
        settings=AT_ONCE,
    )
    await run_until_finished(consumer)
    assert left(nsqd, topic) == 0
    assert letters(nsqd, f"{topic}.dlq") == []
    assert "giving up <Message" in caplog.text


async def test_a_function_decides_where_the_message_goes(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"bad"])
    given_up: list[tuple[bytes, int]] = []

    async def giving_up(message: Message) -> None:
        given_up.append((message.body, message.attempts))

    consumer = Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        max_attempts=2,
        giving_up=giving_up,
        settings=AT_ONCE,
    )
    await run_until_finished(consumer)
    assert given_up == [(b"bad", 3)]
    assert letters(nsqd, f"{topic}.dlq") == []


async def test_a_message_whose_function_fails_is_not_lost(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"m"])

    def giving_up(message: Message) -> None:
        raise OSError("nowhere to put it")

    async with Consumer(
        topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, giving_up=giving_up
    ) as consumer:
        [message] = await take(consumer, 1)
        message.requeue(0, backoff=False)
        taking = asyncio.create_task(take(consumer, 1))
        await until(lambda: nsqd.channel_stats(topic, CHANNEL)["deferred_count"] == 1)
        taking.cancel()
    assert consumer.counters.given_up == 1
    assert left(nsqd, topic) == 1


@pytest.mark.parametrize("name", ["{}.dlq", "{}#ephemeral", "{:x<61}"])
async def test_a_topic_that_has_no_dead_letter_topic_gives_nothing_up(
    nsqd: Nsqd, topic: str, name: str
) -> None:
    topic = name.format(topic)
    publish(nsqd, topic.replace("#", "%23"), [])
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, settings=AT_ONCE)
    attempts = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts < 4:
            await fail(message)

    with nsqd.connect() as client:
        client.mpub(topic, [b"m"])
    await run_until_finished(consumer, handle)
    assert attempts == [1, 2, 3, 4]
    assert consumer.counters.given_up == 0


@pytest.mark.parametrize("giving_up", [None, "keep", 5])
def test_what_is_no_way_of_giving_up_is_refused(giving_up: object) -> None:
    with pytest.raises(TypeError, match="giving_up is 'dead-letter', 'drop' or a function"):
        Consumer("t", "c", nsqd="127.0.0.1:4150", giving_up=giving_up)  # type: ignore[arg-type]
