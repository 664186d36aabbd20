"""Consumers with a type: valid bodies are objects, others are dead letters with the reason."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pumpline import sync
from pumpline.client import Consumer, Message, Producer
from pumpline.testing import LocalNsqd
from tests.kit.client.consuming import until


@dataclass
class Order:
    number: int
    customer: str = "nobody"


@pytest.fixture
def local() -> Iterator[LocalNsqd]:
    with LocalNsqd() as running:
        yield running


VALID = b'{"number": 7, "customer": "ann"}'
INVALID = [b'{"number": "7"}', b"{}", b"no json", b"\xff\xfe", b"[" * 100_000]


async def publish(local: LocalNsqd, *bodies: bytes) -> None:
    await asyncio.to_thread(local.publish, "orders", *bodies)


async def test_valid_bodies_are_objects_and_others_are_dead_letters(local: LocalNsqd) -> None:
    await publish(local, VALID, *INVALID, b'{"number": 8}')
    consumer = Consumer("orders", "billing", nsqd=local.tcp_address, type=Order)
    seen = []

    async def handle(message: Message) -> None:
        seen.append(message.value)

    run = asyncio.create_task(consumer.run(handle))
    await asyncio.to_thread(local.wait_until_done, "orders", "billing")
    consumer.stop_soon()
    await run
    assert seen == [Order(7, "ann"), Order(8)]
    letters = [json.loads(each) for each in await asyncio.to_thread(local.messages, "orders.dlq")]
    assert len(letters) == len(INVALID)
    assert all(letter["attempts"] == 1 and letter["reason"] for letter in letters)
    reasons = {letter.get("body", "")[:20]: letter["reason"] for letter in letters}
    assert reasons['{"number": "7"}'] == "Expected `int`, got `str` - at `$.number`"
    assert consumer.counters.given_up == len(INVALID)


async def test_iterations_batches_and_threads_have_values(local: LocalNsqd) -> None:
    await publish(local, VALID, b"bad")
    async for message in Consumer("orders", "one", nsqd=local.tcp_address, type=Order):
        assert message.value == Order(7, "ann")
        message.finish()
        break
    await publish(local, VALID)
    async for batch in Consumer("orders", "one", nsqd=local.tcp_address, type=Order).batches():
        assert [each.value for each in batch] == [Order(7, "ann")]
        batch.finish()
        break


def test_without_asyncio(local: LocalNsqd) -> None:
    local.publish("orders", VALID, b"bad")
    consumer = sync.Consumer("orders", "billing", nsqd=local.tcp_address, type=Order)
    for message in consumer.messages(idle_s=1):
        assert message.value == Order(7, "ann")
        message.finish()
    assert len(local.messages("orders.dlq")) == 1


async def test_a_codec_is_any_function(local: LocalNsqd) -> None:
    await publish(local, b"1", b"one")
    given_up: list[bytes] = []
    consumer = Consumer(
        "orders",
        "billing",
        nsqd=local.tcp_address,
        codec=int,
        giving_up=lambda message: given_up.append(message.body),
    )
    async with consumer:
        message = await anext(aiter(consumer))
        assert message.value == 1
        message.finish()
        await until(lambda: given_up)
    assert given_up == [b"one"]


async def test_a_codec_that_fails_itself_loses_no_message(local: LocalNsqd) -> None:
    """A schema registry that is down, say, is no reason to give up what is valid."""
    await publish(local, b"x")
    calls = []

    def broken(body: bytes) -> object:
        calls.append(body)
        raise OSError("the registry is down")

    async with Consumer("orders", "billing", nsqd=local.tcp_address, codec=broken) as consumer:
        await until(lambda: consumer.counters.requeued)
    assert not await asyncio.to_thread(local.messages, "orders.dlq")


async def test_invalid_messages_of_a_dead_letter_topic_are_kept(local: LocalNsqd) -> None:
    await asyncio.to_thread(local.publish, "orders.dlq", b"bad")
    async with Consumer("orders.dlq", "again", nsqd=local.tcp_address, type=Order) as consumer:
        await until(lambda: consumer.counters.requeued)
    assert consumer.counters.finished == 0


async def test_values_are_published_as_the_codec_encodes_them(local: LocalNsqd) -> None:
    async with Producer(local.tcp_address) as producer:
        await producer.publish_value("orders", Order(7, "ann"))
        with pytest.raises(TypeError):
            await producer.publish_value("orders", object())
    consumer = Consumer("orders", "billing", nsqd=local.tcp_address, type=Order)
    async for message in consumer:
        assert message.value == Order(7, "ann")
        message.finish()
        break

    def encode(number: int) -> bytes:
        return b"#%d" % number

    async with Producer(local.tcp_address, codec=encode) as producer:
        await producer.publish_value("numbers", 7, token="seven")
        await producer.publish_value("numbers", 7, token="seven")
    assert await asyncio.to_thread(local.messages, "numbers") == [b"#7"]


def test_values_are_published_without_asyncio(local: LocalNsqd) -> None:
    with sync.Producer(local.tcp_address) as producer:
        producer.publish_value("orders", Order(7))
    with sync.Producer(local.tcp_address, codec=str.encode) as producer:
        producer.publish_value("orders", "eight")
    assert local.messages("orders") == [b'{"number":7,"customer":"nobody"}', b"eight"]


async def test_a_codec_that_fails_publishes_nothing(local: LocalNsqd) -> None:
    async with Producer(local.tcp_address, codec=str) as producer:  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a codec returns bytes, not str"):
            await producer.publish_value("orders", 7)
        assert producer.published == 0
    with pytest.raises(TypeError, match="a codec is a function that returns bytes, not str"):
        Producer(local.tcp_address, codec="json")  # type: ignore[arg-type]


def test_mistakes() -> None:
    class Plain:
        pass

    for kind, error in (
        (Plain, "use a dataclass, a TypedDict or a msgspec.Struct"),
        (7, "type=7 is no type that msgspec can validate"),
    ):
        with pytest.raises(TypeError, match=error):
            Consumer("orders", "billing", nsqd="127.0.0.1:4150", type=kind)
    with pytest.raises(TypeError, match="a codec is a function of bytes, not str"):
        Consumer("orders", "billing", nsqd="127.0.0.1:4150", codec="json")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a type or a codec, not both"):
        Consumer("orders", "billing", nsqd="127.0.0.1:4150", type=Order, codec=int)


async def test_a_consumer_without_a_type_has_no_values(local: LocalNsqd) -> None:
    await publish(local, VALID)
    async for message in Consumer("orders", "billing", nsqd=local.tcp_address):
        with pytest.raises(TypeError, match="needs a consumer with a type or a codec"):
            message.value  # noqa: B018
        message.finish()
        break


def test_without_msgspec_one_sentence_says_what_to_install() -> None:
    program = """
import sys
sys.modules["msgspec"] = None  # as if it were not installed
from pumpline.client import Consumer, MissingExtraError, Producer
Consumer("orders", "billing", nsqd="127.0.0.1:4150", codec=int)
try:
    Consumer("orders", "billing", nsqd="127.0.0.1:4150", type=dict)
except MissingExtraError as error:
    print(error)
import asyncio
try:
    asyncio.run(Producer("127.0.0.1:4150").publish_value("orders", 7))
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "a consumer with a type needs msgspec: pip install msgspec",
        "publish_value without a codec needs msgspec: pip install msgspec",
    ]
