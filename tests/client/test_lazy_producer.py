"""A producer whose nsqd is down: at its start, and later."""

import asyncio
from collections.abc import Iterator

import pytest

from pumpline import sync
from pumpline.client import ConnectError, NotSentError, Producer
from pumpline.testing import LocalNsqd
from tests.kit.client.consuming import until
from tests.kit.daemons import wait_until

TOPIC = "orders"


@pytest.fixture
def stopped() -> Iterator[LocalNsqd]:
    """An nsqd that is down, and may be started."""
    with LocalNsqd() as nsqd:
        nsqd.stop()
        yield nsqd


async def test_a_lazy_producer_starts_while_nsqd_is_down_and_publishes_wait(
    stopped: LocalNsqd,
) -> None:
    async with Producer(stopped.tcp_address, lazy=True) as producer:
        assert producer.connected == []
        many = asyncio.create_task(producer.publish_many(TOPIC, [b"2", b"3"]))
        one = asyncio.create_task(producer.publish(TOPIC, b"1"))
        await asyncio.to_thread(stopped.start)
        await asyncio.gather(one, many)
    assert await asyncio.to_thread(stopped.depth, TOPIC) == 3


async def test_a_lazy_producer_that_never_connects_says_why(stopped: LocalNsqd) -> None:
    async with Producer(stopped.tcp_address, lazy=True, timeout_s=0.3) as producer:
        with pytest.raises(NotSentError, match=f"not sent: {stopped.tcp_address}: connection ref"):
            await producer.publish(TOPIC, b"1")


async def test_raising_when_down_does_not_wait(stopped: LocalNsqd) -> None:
    """With an hour's time for each message, only an exception at once ends this test."""
    async with Producer(
        stopped.tcp_address, lazy=True, when_down="raise", timeout_s=3600
    ) as producer:
        for _ in range(2):  # before it is known that nsqd is down, and after
            with pytest.raises(NotSentError, match="connection refused") as failed:
                await producer.publish(TOPIC, b"1")
            assert isinstance(failed.value.__cause__, ConnectError)
            with pytest.raises(NotSentError, match="connection refused"):
                await producer.publish_many(TOPIC, [b"1", b"2"])
        await asyncio.to_thread(stopped.start)
        await until(lambda: producer.connected)
        await producer.publish(TOPIC, b"3")
        await asyncio.to_thread(stopped.stop)
        with pytest.raises(NotSentError, match="connection refused"):
            await producer.publish(TOPIC, b"4")
        await asyncio.to_thread(stopped.start)
        await until(lambda: producer.connected)
        await producer.publish(TOPIC, b"5")
    assert await asyncio.to_thread(stopped.depth, TOPIC) == 2


async def test_messages_refused_while_down_leave_room_for_others(stopped: LocalNsqd) -> None:
    """Their bytes are given back: the limit is that of a few messages."""
    async with Producer(
        stopped.tcp_address, lazy=True, when_down="raise", pending_bytes_max=1000, timeout_s=3600
    ) as producer:
        for _ in range(20):
            with pytest.raises(NotSentError):
                await producer.publish(TOPIC, b"x" * 400)
        results = await asyncio.gather(
            *(producer.publish(TOPIC, b"x" * 400) for _ in range(20)), return_exceptions=True
        )
        assert {type(each) for each in results} == {NotSentError}


def test_a_lazy_producer_without_asyncio(stopped: LocalNsqd) -> None:
    with sync.Producer(stopped.tcp_address, lazy=True, when_down="raise") as producer:
        with pytest.raises(NotSentError, match="connection refused"):
            producer.publish(TOPIC, b"1")
        stopped.start()
        wait_until(lambda: producer.connected)
        producer.publish(TOPIC, b"2")
    assert stopped.depth(TOPIC) == 1


def test_when_down_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="when_down is 'wait' or 'raise', not 'later'"):
        Producer("127.0.0.1:4150", when_down="later")  # type: ignore[arg-type]
