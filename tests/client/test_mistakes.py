"""Mistakes of users: each is answered with one sentence that names it."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pumpline import sync
from pumpline.client import (
    ConnectError,
    Consumer,
    Producer,
    RefusedError,
    ServerError,
    Settings,
)
from pumpline.core.protocol.frames import RESPONSE, encode_frame
from tests.kit.client.consuming import CHANNEL, until
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.ports import HeldPort

ADDRESS = "127.0.0.1:4150"


def consumer(**words: Any) -> Consumer:
    return Consumer("t", CHANNEL, **{"nsqd": ADDRESS, **words})


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Producer(f"http://{ADDRESS}"), ValueError, "without http://"),
        (lambda: Producer(f"tcp://{ADDRESS}"), ValueError, "without tcp://"),
        (lambda: sync.Producer(f"tcp://{ADDRESS}"), ValueError, "without tcp://"),
        (lambda: consumer(nsqd=f"http://{ADDRESS}"), ValueError, "without http://"),
        (lambda: Producer(4150), TypeError, "address is text.*not int"),
        (lambda: Producer(ADDRESS.encode()), TypeError, "address is text.*not bytes"),
        (lambda: Producer([ADDRESS, None]), TypeError, "address is text.*not NoneType"),
        (lambda: consumer(nsqd=4150), TypeError, "address is text.*not int"),
        (lambda: consumer(lookupd=4161), TypeError, "address is text.*not int"),
        (lambda: consumer(lookupd=[b"a:4161"]), TypeError, "address is text.*not bytes"),
        (lambda: consumer(lookupd="tcp://a:4160"), ValueError, "expected host:port or a URL"),
        (lambda: Consumer(5, CHANNEL, nsqd=ADDRESS), TypeError, "topic name is text, not int"),
        (lambda: Consumer("t", b"c", nsqd=ADDRESS), TypeError, "channel name is text, not bytes"),
        (
            lambda: consumer(max_in_flight="5"),
            TypeError,
            "max_in_flight is a whole number, not str",
        ),
        (lambda: consumer(max_in_flight=2.5), TypeError, "max_in_flight is a whole .* not float"),
        (lambda: consumer(max_in_flight=None), TypeError, "max_in_flight is a whole number"),
        (lambda: consumer(max_in_flight=-1), ValueError, "max_in_flight must not be negative"),
        (lambda: consumer(max_attempts="5"), TypeError, "max_attempts is a whole number"),
        (lambda: setattr(consumer(), "max_in_flight", "5"), TypeError, "whole number, not str"),
        (lambda: Settings(tls="yes"), TypeError, "tls is True, False or an ssl.SSLContext"),
        (lambda: Settings(tls=None), TypeError, "tls is True, False or an ssl.SSLContext"),
        (lambda: Settings(auth_secret=5), TypeError, "auth_secret is text or bytes, not int"),
        (lambda: Settings(msg_timeout_s="5"), TypeError, "msg_timeout_s is a number"),
        (lambda: Settings(read_timeout_s=timedelta(1)), TypeError, "read_timeout_s is a number"),
    ],
)
def test_a_wrong_argument_is_told_at_once(
    make: Callable[[], object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as told:
        make()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "words", "text"),
    [
        ((5, b"m"), {}, "topic name is text, not int"),
        ((b"t", b"m"), {}, "topic name is text, not bytes"),
        ((["t"], b"m"), {}, "topic name is text, not list"),
        (("t", "m"), {}, "message is bytes, not str"),
        (("t", None), {}, "message is bytes, not NoneType"),
        (("t", b"m"), {"defer": "5"}, "delay is a number of seconds or a timedelta, not str"),
        (("t", b"m"), {"defer": True}, "delay is a number of seconds or a timedelta, not bool"),
    ],
)
async def test_a_wrong_type_is_not_published(
    nsqd: Nsqd, arguments: tuple[Any, Any], words: dict[str, Any], text: str
) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(TypeError, match=text):
            await producer.publish(*arguments, **words)
        assert producer.published == 0


@pytest.mark.parametrize("bodies", [b"m", "m", 5, None, bytearray(b"m")])
async def test_publish_many_takes_many(nsqd: Nsqd, bodies: Any) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(TypeError, match=f"list of bytes, not {type(bodies).__name__}"):
            await producer.publish_many("t", bodies)
        with pytest.raises(TypeError, match="topic name is text, not int"):
            await producer.publish_many(5, [b"m"])  # type: ignore[arg-type]


async def failure_of(address: str) -> str:
    with pytest.raises(ConnectError) as failed:
        await Producer(address).start()
    return str(failed.value)


async def test_a_wrong_port_is_told_by_what_listens_there(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "log") as nsqlookupd:
        for address in (nsqd.http_address, nsqlookupd.http_address):
            assert (
                await failure_of(address) == f"{address}: an HTTP port; nsqd's TCP port is needed"
            )
        told = await failure_of(nsqlookupd.tcp_address)
        assert "an nsqlookupd's TCP port; an nsqd's is needed" in told


async def test_a_wrong_port_is_told_once_however_often_it_is_tried(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pumpline.client")
    told = f"{nsqd.http_address}: an HTTP port; nsqd's TCP port is needed"

    def levels() -> list[int]:
        return [each.levelno for each in caplog.records if each.getMessage() == told]

    trying = consumer(nsqd=nsqd.http_address)
    trying.start()
    await until(lambda: len(levels()) > 2)
    await trying.stop()
    assert (levels().count(logging.WARNING), levels()[0]) == (1, logging.WARNING)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_called_refused(host: str) -> None:
    address = f"{host}:{HeldPort().number}"
    assert await failure_of(address) == f"{address}: connection refused"


@pytest.mark.parametrize("answer", [b"[]", b"5", b"null", b'"x"', b"{", b"hello", b"", b"\xff"])
async def test_an_answer_to_identify_that_is_no_json_object_is_told(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"IDENTIFY\n")
        writer.write(encode_frame(RESPONSE, answer))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        told = await failure_of(f"127.0.0.1:{port}")
    assert "not the answer of an nsqd: IDENTIFY was answered with" in told


async def test_a_delay_over_nsqds_limit_names_the_flag(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(RefusedError, match=r"DPUB timeout 3600001 .*nsqd's --max-req-timeout"):
            await producer.publish("t", b"1", defer=timedelta(milliseconds=3_600_001))
        assert "max-req-timeout" not in str(RefusedError(ServerError("E_BAD_TOPIC", "no")))
