"""What `publish_many` says when some of its parts failed, and some did so in another way."""

import asyncio
import threading
import tracemalloc

import pytest

from pumpline import sync
from pumpline.client import Producer, PublishError, UnconfirmedError
from pumpline.core.protocol.frames import RESPONSE, encode_frame
from pumpline.testing import LocalNsqd
from tests.kit.client.scripted import Client, scripted

BODY = b"x" * 1000
MANY = [BODY] * 40


async def swallow(client: Client) -> None:
    """Take everything, and answer nothing."""
    await client.gone()


async def answer_one(client: Client) -> None:
    await client.command()
    client.send(encode_frame(RESPONSE, b"OK"))
    await client.gone()


def producer(address: str) -> Producer:
    return Producer(address, timeout_s=0.3, body_bytes_max=5000, pending_bytes_max=8000)


async def test_what_was_sent_is_unconfirmed_when_the_rest_found_no_room() -> None:
    async with scripted(swallow) as address, producer(address) as many:
        with pytest.raises(UnconfirmedError) as failed:
            await many.publish_many("t", MANY)
        assert failed.value.confirmed == 0


async def test_what_was_confirmed_is_counted_beside_what_is_unconfirmed() -> None:
    async with scripted(answer_one) as address, producer(address) as many:
        with pytest.raises(UnconfirmedError) as failed:
            await many.publish_many("t", MANY)
        assert failed.value.confirmed == many.published > 0


async def test_a_producer_closed_amid_publish_many_tells_what_was_sent() -> None:
    taken = threading.Event()

    async def swallow_one(client: Client) -> None:
        await client.command()
        taken.set()
        await client.gone()

    async with scripted(swallow_one) as address:
        many = producer(address)
        await many.start()
        publishing = asyncio.create_task(many.publish_many("t", MANY))
        async with asyncio.timeout(60):
            while not taken.is_set():
                await asyncio.sleep(0.001)
        await many.close()
        with pytest.raises(UnconfirmedError):
            await publishing


async def test_it_is_the_same_without_asyncio() -> None:
    def publish(address: str) -> PublishError:
        with sync.Producer(
            address, timeout_s=0.3, body_bytes_max=5000, pending_bytes_max=8000
        ) as many:
            with pytest.raises(PublishError) as failed:
                many.publish_many("t", MANY)
            assert failed.value.confirmed == many.published
            return failed.value

    async with scripted(swallow) as address:
        assert isinstance(await asyncio.to_thread(publish, address), UnconfirmedError)
    async with scripted(answer_one) as address:
        error = await asyncio.to_thread(publish, address)
        assert isinstance(error, UnconfirmedError)
        assert error.confirmed > 0


async def test_a_long_list_is_encoded_as_far_as_nsqd_takes_it() -> None:
    """The list has one body 30 times, so that it needs 1 MB; all its MPUBs need 30."""
    large = [bytes(1 << 20)] * 30
    deaf = asyncio.Event()

    async def read_nothing(client: Client) -> None:
        await deaf.wait()

    async with scripted(read_nothing) as address:
        many = Producer(address, timeout_s=0.5, retry_unconfirmed=False)
        await many.start()
        tracemalloc.start()
        try:
            with pytest.raises(UnconfirmedError):
                await many.publish_many("t", large)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            deaf.set()
            await many.close()
    assert peak_bytes < 15 << 20


class Text(bytes):
    """Of a library that has a class of its own."""


async def test_bodies_of_a_class_of_the_user_are_published(nsqd: LocalNsqd) -> None:
    async with Producer(nsqd.tcp_address) as many:
        await many.publish_many("mine", [Text(b"a"), b"b"])
        await many.publish("mine", Text(b"c"))
        assert many.published == 3
