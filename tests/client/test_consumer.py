"""A consumer and a real nsqd: iterating, answering, time, attempts and settings."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pumpline.client import Consumer, Settings
from pumpline.client.consuming.subscription import requeue_delay_s
from pumpline.core.protocol.frames import ERROR, RESPONSE, encode_frame
from tests.kit.auth_server import AuthorityServer, grant
from tests.kit.certificates import Authority, client_context
from tests.kit.client.consuming import CHANNEL, finish_all, left, numbered, publish, take, until
from tests.kit.client.scripted import Client, scripted
from tests.kit.daemons import Nsqd

TOUCH_S = 0.01  # much less than any time a message has here

NewConsumer = Callable[..., Consumer]


@pytest.fixture(scope="module")
def hasty_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Takes messages back after a second, which is more than a busy machine stalls a test."""
    flags = ["--msg-timeout=1s"]
    with Nsqd(tmp_path_factory.mktemp("hasty") / "data", flags) as running:
        yield running


@pytest.fixture
def hasty_consumer(hasty_nsqd: Nsqd, topic: str) -> NewConsumer:
    def make(**words: object) -> Consumer:
        return Consumer(topic, CHANNEL, nsqd=hasty_nsqd.tcp_address, **words)  # type: ignore[arg-type]

    return make


@pytest.fixture
def new_consumer(nsqd: Nsqd, topic: str) -> NewConsumer:
    def make(**words: object) -> Consumer:
        return Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, **words)  # type: ignore[arg-type]

    return make


async def test_every_message_comes_once(nsqd: Nsqd, topic: str, new_consumer: NewConsumer) -> None:
    publish(nsqd, topic, numbered(3000))
    async with new_consumer(max_in_flight=200) as consumer:
        bodies = await finish_all(consumer, 3000)
    assert sorted(bodies) == sorted(numbered(3000))
    assert left(nsqd, topic) == 0
    assert consumer.counters.finished == 3000


async def test_a_message_says_what_it_is(nsqd: Nsqd, topic: str, new_consumer: NewConsumer) -> None:
    before_ns = time.time_ns()
    publish(nsqd, topic, [b"hello"])
    async with new_consumer() as consumer:
        [message] = await take(consumer, 1)
        assert (message.body, message.attempts) == (b"hello", 1)
        assert len(message.id) == 16
        assert before_ns <= message.timestamp_ns <= time.time_ns()
        assert not message.is_answered
        assert message.finish()
        assert message.is_answered


async def test_leaving_a_bare_iteration_closes_the_connection_and_puts_back_the_rest(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(50))
    async for message in new_consumer(max_in_flight=50):
        message.finish()
        break
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["client_count"] == 0)
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["depth"], stats["in_flight_count"]) == (49, 0)


async def test_a_stopped_consumer_says_that_it_does_not_start_again(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(2))
    consumer = new_consumer()
    await finish_all(consumer, 1)
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["client_count"] == 0)
    for again in (finish_all(consumer, 1), consumer.__aenter__()):
        with pytest.raises(RuntimeError, match="make a new one"):
            await again


async def test_the_first_answer_counts(nsqd: Nsqd, topic: str, new_consumer: NewConsumer) -> None:
    publish(nsqd, topic, [b"m"])
    async with new_consumer() as consumer:
        [message] = await take(consumer, 1)
        assert message.finish()
        assert not message.requeue(0)
        assert not message.finish()
        assert not message.touch()
    assert left(nsqd, topic) == 0
    assert consumer.counters.refused == 0


async def test_a_requeued_message_comes_again_with_one_more_attempt(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    async with new_consumer() as consumer:
        [message] = await take(consumer, 1)
        message.requeue(0, backoff=False)
        [again] = await take(consumer, 1)
        assert (again.id, again.attempts) == (message.id, 2)
        again.finish()


@pytest.mark.parametrize(("attempts", "delay_s"), [(1, 90), (3, 270), (10, 900), (60000, 900)])
def test_a_requeue_without_a_delay_waits_longer_with_every_attempt(
    attempts: int, delay_s: float
) -> None:
    assert requeue_delay_s(Settings(), attempts) == delay_s


async def test_requeues_are_deferred_by_their_delay(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    async with new_consumer() as consumer:
        [message] = await take(consumer, 1)
        message.requeue(60, backoff=False)
        await until(lambda: nsqd.channel_stats(topic, CHANNEL)["deferred_count"] == 1)


async def test_a_delay_that_is_none_is_refused_and_the_message_can_still_be_answered(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    async with new_consumer() as consumer:
        [message] = await take(consumer, 1)
        for delay in (-1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="delayed"):
                message.requeue(delay)
        with pytest.raises(TypeError):
            message.requeue("soon")  # type: ignore[arg-type]
        assert message.requeue(timedelta(0), backoff=False)
        [again] = await take(consumer, 1)
        assert again.finish()
    assert left(nsqd, topic) == 0


async def test_no_more_than_max_in_flight_are_in_hand(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(100))
    async with new_consumer(max_in_flight=10) as consumer:
        await take(consumer, 10)
        assert nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 10
        consumer.max_in_flight = 12
        await until(lambda: consumer.in_flight == 12)
        assert nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 12
        assert consumer.is_starved
        await consumer.stop(timeout_s=0)


async def test_max_in_flight_0_pauses(nsqd: Nsqd, topic: str, new_consumer: NewConsumer) -> None:
    async with new_consumer(max_in_flight=0) as consumer:
        await until(lambda: consumer.connections)
        publish(nsqd, topic, [b"m"])
        assert nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 0
        consumer.max_in_flight = 1
        assert await finish_all(consumer, 1) == [b"m"]


async def test_a_message_not_answered_in_time_is_written_off_and_comes_again(
    hasty_nsqd: Nsqd, topic: str, hasty_consumer: NewConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    publish(hasty_nsqd, topic, [b"m"])
    async with hasty_consumer(max_in_flight=1, auto_touch=False) as consumer:
        [late] = await take(consumer, 1)
        [again] = await take(consumer, 1)
        again.finish()
        assert (again.id, again.attempts) == (late.id, 2)
        await until(lambda: late.is_over)  # nsqd's timer started before ours
        assert not late.finish()
    assert consumer.counters.expired == 1
    assert "1 messages were not answered within 1 s" in caplog.text


async def test_messages_that_waited_too_long_are_not_shown(
    hasty_nsqd: Nsqd, topic: str, hasty_consumer: NewConsumer
) -> None:
    publish(hasty_nsqd, topic, numbered(2))
    async with hasty_consumer(max_in_flight=2, auto_touch=False) as consumer:
        await until(lambda: consumer.counters.expired == 2)
        messages = await take(consumer, 2)
        assert [message.attempts for message in messages] == [2, 2]
        for message in messages:
            assert message.finish()


async def test_a_touched_message_stays_ours(
    hasty_nsqd: Nsqd, topic: str, hasty_consumer: NewConsumer
) -> None:
    publish(hasty_nsqd, topic, numbered(2))
    async with hasty_consumer(max_in_flight=2, auto_touch=False) as consumer:
        touched, other = await take(consumer, 2)
        while not other.is_over:
            assert touched.touch()
            await asyncio.sleep(TOUCH_S)
        assert touched.finish()
        await until(lambda: hasty_nsqd.channel_stats(topic, CHANNEL)["timeout_count"] == 1)
        await finish_all(consumer, 1)
    assert consumer.counters.refused == 0


async def test_messages_are_touched_until_they_are_answered(
    hasty_nsqd: Nsqd, topic: str, hasty_consumer: NewConsumer
) -> None:
    publish(hasty_nsqd, topic, numbered(3))
    async with hasty_consumer() as consumer:
        messages = await take(consumer, 2)  # and one that waits
        await until(lambda: consumer.counters.touched >= 9)
        stats = hasty_nsqd.channel_stats(topic, CHANNEL)
        assert (stats["in_flight_count"], stats["timeout_count"]) == (3, 0)
        for message in messages:
            assert message.finish()
        await finish_all(consumer, 1)
    assert left(hasty_nsqd, topic) == 0


async def test_a_message_at_the_end_of_its_time_does_not_delay_the_touch_of_others(
    tmp_path: Path, topic: str
) -> None:
    flags = ["--msg-timeout=1200ms", "--max-msg-timeout=1800ms"]
    with Nsqd(tmp_path / "data", flags) as nsqd:
        publish(nsqd, topic, [b"old"])
        async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
            [old] = await take(consumer, 1)
            await until(lambda: consumer.counters.touched == 1)  # as often as nsqd allows it
            publish(nsqd, topic, [b"new"])
            [new] = await take(consumer, 1)
            await until(lambda: consumer.counters.touched == 2)
            assert not old.is_over
            assert old.finish()
            assert new.finish()


async def test_touching_ends_where_nsqd_allows_no_more(tmp_path: Path, topic: str) -> None:
    flags = ["--msg-timeout=500ms", "--max-msg-timeout=1s"]
    with Nsqd(tmp_path / "data", flags) as nsqd:
        publish(nsqd, topic, [b"m"])
        async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=1) as consumer:
            [message] = await take(consumer, 1)
            await until(lambda: message.is_over)
            [again] = await take(consumer, 1)
            assert again.attempts == 2
            again.finish()


async def test_batches_hold_what_is_at_hand(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(1000))
    bodies: list[bytes] = []
    sizes = []
    async with new_consumer(max_in_flight=100) as consumer:
        async for batch in consumer.batches(40):
            bodies += [message.body for message in batch]
            sizes.append(len(batch))
            batch.finish()
            if len(bodies) == 1000:
                break
    assert sorted(bodies) == sorted(numbered(1000))
    assert max(sizes) == 40
    assert left(nsqd, topic) == 0


async def test_a_batch_waits_to_become_full_but_not_forever(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"first"])
    async with new_consumer(max_in_flight=100) as consumer:
        batches = consumer.batches(3, wait_s=30)
        batch_to_come = asyncio.ensure_future(anext(batches))
        await until(lambda: consumer.in_flight == 1)
        publish(nsqd, topic, [b"second", b"third"])
        batch = await batch_to_come
        assert [message.body for message in batch] == [b"first", b"second", b"third"]
        batch.finish()
        publish(nsqd, topic, [b"fourth"])
        async for short in consumer.batches(3, wait_s=0.05):
            assert [message.body for message in short] == [b"fourth"]
            short.finish()
            break


async def test_answers_of_one_moment_are_one_write(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(100))
    async with new_consumer(max_in_flight=100) as consumer:
        messages = await take(consumer, 100)
        with recorded(consumer) as written:
            for message in messages:
                message.finish()
            await until(lambda: left(nsqd, topic) == 0)
    assert [data.count(b"FIN ") for data in written] == [100]


async def test_touches_of_one_moment_are_one_write(
    hasty_nsqd: Nsqd, topic: str, hasty_consumer: NewConsumer
) -> None:
    publish(hasty_nsqd, topic, numbered(100))
    async with hasty_consumer(max_in_flight=100) as consumer:
        await until(lambda: consumer.in_flight == 100)
        with recorded(consumer) as written:
            await until(lambda: consumer.counters.touched == 100)
            await until(lambda: written)
        await finish_all(consumer, 100)
    assert [data.count(b"TOUCH ") for data in written if b"TOUCH " in data] == [100]


@contextmanager
def recorded(consumer: Consumer) -> Iterator[list[bytes]]:
    """What it writes to its nsqd meanwhile."""
    assert consumer._running is not None
    [subscription] = consumer._running.subscriptions.by_address.values()
    assert subscription.connection is not None
    written: list[bytes] = []
    transport = subscription.connection._transport
    subscription.connection._transport = Recording(transport, written)  # type: ignore[assignment]
    yield written
    subscription.connection._transport = transport


class Recording:
    """A transport that keeps what is written to another."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


@pytest.mark.parametrize(
    "settings",
    [Settings(snappy=True), Settings(deflate=True), Settings(auth_secret="s")],
    ids=["snappy", "deflate", "auth"],
)
async def test_settings_of_the_connection_hold(
    tmp_path: Path, authority: Authority, topic: str, settings: Settings
) -> None:
    context = client_context(authority=authority)
    settings = Settings(
        tls=context,
        snappy=settings.snappy,
        deflate=settings.deflate,
        auth_secret=settings.auth_secret,
    )
    flags = authority.issue("nsqd").flags()
    row = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    with AuthorityServer(lambda asked: grant(row)) as server:
        if settings.auth_secret:
            flags = [*flags, f"--auth-http-address={server.address}"]
        with Nsqd(tmp_path / "data", flags) as nsqd:
            nsqd.http("POST", f"/topic/create?topic={topic}")
            nsqd.http("POST", f"/channel/create?topic={topic}&channel={CHANNEL}")
            nsqd.http("POST", f"/mpub?topic={topic}", b"\n".join(numbered(500)))
            async with Consumer(
                topic, CHANNEL, nsqd=nsqd.tcp_address, settings=settings
            ) as consumer:
                bodies = await finish_all(consumer, 500)
    assert sorted(bodies) == sorted(numbered(500))


async def test_an_nsqd_that_refuses_the_subscription_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [encode_frame(ERROR, b"E_BAD_CHANNEL no"), encode_frame(RESPONSE, b"OK")]

    async def refuse_once(client: Client) -> None:
        assert (await client.command()).startswith(b"SUB ")
        client.send(answers.pop(0))
        if not answers:
            while (await client.command()) != b"CLS":
                pass
            client.send(encode_frame(RESPONSE, b"CLOSE_WAIT"))
        await client.gone()

    async with (
        scripted(refuse_once) as address,
        Consumer("t", CHANNEL, nsqd=address, settings=Settings(stop_timeout_s=0)) as consumer,
    ):
        await until(lambda: consumer.connections)
    assert answers == []
    assert "E_BAD_CHANNEL" in caplog.text


@pytest.mark.parametrize(
    "words",
    [
        {"topic": "no good"},
        {"channel": ""},
        {"nsqd": ()},
        {"nsqd": ["nowhere"]},
        {"lookupd": ["nowhere"]},
        {"max_in_flight": -1},
        {"max_attempts": -1},
        {"settings": Settings(heartbeat_interval_s=-1)},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(words: dict[str, object]) -> None:
    right: dict[str, object] = {"topic": "t", "channel": "c", "nsqd": ["127.0.0.1:4150"]}
    with pytest.raises(ValueError):
        Consumer(**{**right, **words})  # type: ignore[arg-type]
