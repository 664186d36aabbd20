"""Asking nsqlookupds: what a good answer gives, and what bad ones do not break."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import pytest

from pumpline.client.discovery import (
    ANSWER_BYTES_MAX,
    SEARCH_INTERVAL_S,
    Discovery,
    Sightings,
    lookup_url,
    parse_answer,
)
from pumpline.testing import LocalNsqd, LocalNsqlookupd

PRODUCER = {"broadcast_address": "node1", "tcp_port": 4150}
GOOD = json.dumps({"channels": [], "producers": [PRODUCER]}).encode()


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, close: bool = True) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that says the same to everybody; and what it was asked."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if not close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", requests


def with_length(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def new_discovery(*lookupds: str, timeout_s: float = 5.0) -> Discovery:
    return Discovery("orders", lookupds, timeout_s=timeout_s, random=lambda: 0.5)


@pytest.mark.parametrize(
    "answer",
    [
        with_length(GOOD),
        b"HTTP/1.0 200 OK\n\n" + GOOD,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x;x=y\r\n%c\r\n" % (1, byte) for byte in GOOD)
        + b"0\r\n\r\n",
        with_length(json.dumps({"status_code": 200, "data": {"producers": [PRODUCER]}}).encode()),
    ],
    ids=["length", "to the end", "chunks", "wrapped as before 1.0"],
)
async def test_a_good_answer_names_nsqds(answer: bytes) -> None:
    async with answering(answer) as (address, requests):
        discovery = new_discovery(address)
        await discovery.poll()
    assert discovery.nodes == {"node1:4150"}
    assert requests[0].startswith(b"GET /lookup?topic=orders HTTP/1.1\r\n")
    assert b"Accept: application/vnd.nsq; version=1.0\r\n" in requests[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000 + b"\r\n\r\n",
        with_length(b"\xff\xfe"),
        with_length(b"[" * 100_000),
        with_length(b"[]"),
        with_length(b'{"producers": 7}'),
        with_length(GOOD, "500 Oops"),
        with_length(GOOD, "302 Found"),
    ],
)
async def test_a_bad_answer_is_logged_and_names_nobody(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(answer) as (bad, _), answering(with_length(GOOD)) as (good, _):
        discovery = new_discovery(bad, good)
        await discovery.poll()
    assert discovery.nodes == {"node1:4150"}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"nsqlookupd {bad}: ")


async def test_an_unknown_topic_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with answering(with_length(b'{"message":"TOPIC_NOT_FOUND"}', "404 No")) as (address, _):
        discovery = new_discovery(address)
        for _ in range(3):
            await discovery.poll()
    assert discovery.nodes == set()
    assert caplog.messages == [
        "no nsqlookupd knows an nsqd with the topic 'orders': nothing to consume until one has it"
    ]


async def test_nsqlookupds_that_are_wrong_are_warned_of_once_and_again_when_that_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalNsqd() as nsqd, LocalNsqlookupd() as lookupd:
        discovery = new_discovery(nsqd.http_address, lookupd.http_address)

        async def warnings() -> list[str]:
            caplog.clear()
            for _ in range(2):
                await discovery.poll()
            assert {record.levelno for record in caplog.records} <= {logging.WARNING}
            return sorted(caplog.messages)

        wrong = f"nsqlookupd {nsqd.http_address}: this is not an nsqlookupd's HTTP port"
        unknown, not_one = await warnings()
        assert unknown.startswith("no nsqlookupd knows an nsqd with the topic 'orders'")
        assert not_one.startswith(wrong)
        assert await warnings() == []
        lookupd.stop()
        [refused] = await warnings()
        assert refused == f"nsqlookupd {lookupd.http_address}: Connection refused"
        lookupd.start()
        assert await warnings() == [f"nsqlookupd {lookupd.http_address}: answers again"]
        with LocalNsqd(f"--lookupd-tcp-address={lookupd.tcp_address}") as publishing:
            publishing.publish("orders", b"1")
            while not discovery.nodes:
                await discovery.poll()
            assert caplog.messages[-1] == (f"the topic 'orders' is found: {publishing.tcp_address}")


@pytest.mark.parametrize(
    "producer",
    [
        7,
        {},
        {"broadcast_address": "node2"},
        {"broadcast_address": "node2", "tcp_port": "4150"},
        {"broadcast_address": "node2", "tcp_port": True},
        {"broadcast_address": "node2", "tcp_port": 0},
        {"broadcast_address": "node2", "tcp_port": 65_536},
        {"broadcast_address": "", "tcp_port": 4150},
        {"broadcast_address": "../../etc/passwd", "tcp_port": 4150},
        {"broadcast_address": "a\nb", "tcp_port": 4150},
        {"broadcast_address": "x" * 256, "tcp_port": 4150},
        {"broadcast_address": ["node2"], "tcp_port": 4150},
    ],
)
def test_entries_that_make_no_sense_are_left_out(producer: object) -> None:
    body = json.dumps({"producers": [producer, PRODUCER]}).encode()
    assert parse_answer(body) == {"node1:4150"}


def test_an_ipv6_address_is_put_in_brackets() -> None:
    body = json.dumps({"producers": [{"broadcast_address": "::1", "tcp_port": 1}]}).encode()
    assert parse_answer(body) == {"[::1]:1"}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("lookup:4161", "http://lookup:4161/lookup?topic=a%23ephemeral"),
        ("http://lookup:4161/", "http://lookup:4161/lookup?topic=a%23ephemeral"),
        ("https://lookup:4161/nsq/find", "https://lookup:4161/nsq/find?topic=a%23ephemeral"),
        ("http://[::1]:4161?zone=a", "http://[::1]:4161/lookup?zone=a&topic=a%23ephemeral"),
    ],
)
def test_an_address_becomes_the_url_of_a_lookup(given: str, url: str) -> None:
    assert lookup_url(given, "a#ephemeral") == url


@pytest.mark.parametrize("given", ["", "lookup", "ftp://lookup:4161", "http://:4161", "a:b"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        lookup_url(given, "t")


def test_answers_of_several_are_merged() -> None:
    sightings = Sightings()
    sightings.merge({"l1": frozenset({"a", "b"}), "l2": frozenset({"b", "c"})})
    assert sightings.nodes == {"a", "b", "c"}


def test_one_poll_without_an_nsqd_is_not_enough_to_drop_it() -> None:
    sightings = Sightings()
    for answer, expected in [("ab", "ab"), ("a", "ab"), ("ab", "ab"), ("a", "ab"), ("a", "a")]:
        sightings.merge({"l1": frozenset(answer)})
        assert sightings.nodes == set(expected)


def test_who_gives_no_answer_counts_as_saying_what_it_said_last() -> None:
    sightings = Sightings()
    sightings.merge({"l1": frozenset("a"), "l2": frozenset("b")})
    for _ in range(5):
        sightings.merge({"l1": frozenset("a"), "l2": None})
    assert sightings.nodes == {"a", "b"}
    for _ in range(5):
        sightings.merge({"l1": None, "l2": None})
    assert sightings.nodes == {"a", "b"}


def test_pauses_are_short_at_first_while_nobody_is_known() -> None:
    discovery = new_discovery("lookup:4161")
    pauses = [discovery.pause_s() for _ in range(10)]
    assert pauses[:4] == [SEARCH_INTERVAL_S * 2**i for i in range(4)]
    assert pauses[-1] == 60
    discovery.sightings.merge({"lookup:4161": frozenset("a")})
    assert discovery.pause_s() == 60


@pytest.mark.parametrize(("dice", "pause_s"), [(0.0, 51.0), (1.0, 69.0)])
def test_pauses_differ_by_the_jitter(dice: float, pause_s: float) -> None:
    discovery = Discovery("t", ["lookup:4161"], random=lambda: dice)
    discovery.sightings.merge({"lookup:4161": frozenset("a")})
    assert discovery.pause_s() == pytest.approx(pause_s)
