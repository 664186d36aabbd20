"""One connection, over real sockets: replies in order, bounds, and an end in order."""

import asyncio
import gc
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pumpline.web import bodies, connection
from pumpline.web.time_limits import Patience
from tests.kit.serving import Talk, serving
from tests.kit.web.site import BODY_BYTES_MAX, LARGE_BYTES, TestSite, get, post, read_reply

SHORT_S = 0.05
LARGE = bytes(range(256)) * 8192  # 2 MiB, which no socket takes in one piece


@asynccontextmanager
async def open_site(patience: Patience | None = None) -> AsyncIterator[tuple[TestSite, Talk]]:
    site = TestSite(patience)
    async with serving(site.server, read_bytes_max=LARGE_BYTES) as talk:
        yield site, talk


async def test_a_reply_has_a_date_and_says_who_answers() -> None:
    async with open_site() as (_, talk):
        reader, _ = await talk(get("a"))
        status, headers, body = await read_reply(reader)
    assert (status, body) == (200, b'{"word":"a"}')
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers.pop("Date"))
    assert headers.pop("Server").startswith("pumpline/")
    assert headers == {
        "Content-Length": "12",
        "Content-Type": "application/json; charset=utf-8",
        "X-NSQ-Content-Type": "nsq; version=1.0",
    }


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [("?word=", 404, b"NO_WORD"), ("", 404, b"NO_WORD"), ("?word=%zz", 400, b"INVALID_REQUEST")],
)
async def test_errors_of_answers_at_once(query: str, status: int, code: bytes) -> None:
    async with open_site() as (_, talk):
        reader, _ = await talk(get("", target=f"/find{query}"))
        found, _, body = await read_reply(reader)
    assert (found, body) == (status, b'{"message":"%b"}' % code)


@pytest.mark.parametrize("size", [1, 7, 30, 10_000])
async def test_requests_of_all_kinds_in_pieces_are_answered_in_order(size: int) -> None:
    async with open_site() as (site, talk):
        site.go.set()
        row = b"".join(
            (
                get("a") * 2,
                post(b"put"),
                get("", target="/slow"),
                post(b"x" * 5000, target="/task"),
                post(b"put again") * 2,
                get("", target="/nowhere"),
                get("last", "Connection: close"),
            )
        )
        reader, writer = await talk(b"")
        for at in range(0, len(row), size):
            writer.write(row[at : at + size])
            await writer.drain()
            if size < 1000:
                await asyncio.sleep(0)
        answers = [(await read_reply(reader))[2] for _ in range(9)]
        assert await reader.read() == b""
    assert answers == [
        *[b'{"word":"a"}'] * 2,
        b"OK",
        b"slow",
        b"5000",
        *[b"OK"] * 2,
        b'{"message":"NOT_FOUND"}',
        b'{"word":"last"}',
    ]


async def test_requests_behind_the_end_of_a_turn_do_not_wait_for_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "TURN_NS", -1)  # each request is a turn
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, _ = await talk(post(b"1") + post(b"2") + post(b"3"))
        await site.until(3)
        promise.keep()
        assert [(await read_reply(reader))[2] for _ in range(3)] == [b"OK"] * 3


async def test_answers_that_come_later_keep_their_order() -> None:
    async with open_site() as (site, talk):
        first = site.hold()
        reader, _ = await talk(post(b"1") + get("a") + post(b"2") + get("b"))
        await site.until(4)
        receiving = asyncio.create_task(reader.read(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not receiving.done()
        first.keep()
        assert await receiving == b"H"
        bodies_read = [(await read_reply(reader))[2] for _ in range(4)]
    assert bodies_read == [b"OK", b'{"word":"a"}', b"OK", b'{"word":"b"}']
    assert site.kept == [b"1", b"2"]


async def test_a_task_begins_when_all_before_it_are_answered_and_nothing_behind_it_does() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, _ = await talk(post(b"1") + get("", target="/slow") + post(b"2"))
        await site.until(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert site.asked == ["put"]
        promise.keep()
        await site.until(2)
        assert (await read_reply(reader))[2] == b"OK"
        assert site.asked == ["put", "slow"]
        site.promise = None
        site.go.set()
        assert [(await read_reply(reader))[2] for _ in range(2)] == [b"slow", b"OK"]


async def test_a_failure_is_told_to_all_it_concerns_and_replies_are_counted() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, _ = await talk(post(b"1") * 2 + get("a"))
        await site.until(3)
        promise.keep("FULL")
        for _ in range(2):
            status, headers, body = await read_reply(reader)
            assert (status, body) == (503, b'{"message":"FULL"}')
            assert headers["Content-Type"] == "application/json; charset=utf-8"
        await read_reply(reader)
    assert site.server.replies == {503: 2, 200: 1}


async def test_no_more_than_the_limit_stand_in_line() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, _ = await talk(post(b"x") * (connection.DUE_MAX + 5))
        await site.until(connection.DUE_MAX)
        other, _ = await talk(get("a"))
        await read_reply(other)  # whoever could be served was
        assert site.asked.count("put") == connection.DUE_MAX
        site.promise = None
        promise.keep()
        for _ in range(connection.DUE_MAX + 5):
            assert (await read_reply(reader))[0] == 200


async def test_others_have_their_turn_between_many_requests() -> None:
    async with open_site() as (site, talk):
        reader, _ = await talk(get("a") * 2000)
        other, _ = await talk(get("b"))
        await read_reply(other)
        assert len(site.asked) < 2000
        for _ in range(2000):
            assert (await read_reply(reader))[2] == b'{"word":"a"}'


async def test_a_client_that_does_not_read_gets_no_second_answer() -> None:
    async with open_site() as (site, talk):
        reader, _ = await talk(get("large") * 10)
        for count in range(1, 4):
            assert len((await read_reply(reader))[2]) > LARGE_BYTES
            assert len(site.asked) <= count + 2  # one is made ahead, and one waits to be sent


async def test_a_client_that_sends_while_a_task_is_at_work_does_not_fill_the_memory() -> None:
    async with open_site() as (site, talk):
        reader, writer = await talk(get("", target="/slow"))
        await site.until(1)
        many = post(b"x" * 1000) * 20_000  # 20 MB
        writer.write(many)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await writer.drain()
        (served,) = site.server._shared.connections
        assert len(served._unread) < 1 << 20
        site.go.set()
        for _ in range(20_001):
            assert (await read_reply(reader))[0] == 200


async def test_an_idle_client_is_disconnected() -> None:
    async with open_site(Patience(keepalive_s=SHORT_S)) as (_, talk):
        reader, _ = await talk(get("a"))
        await read_reply(reader)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)


async def test_a_client_that_trickles_a_head_is_disconnected() -> None:
    async with open_site(Patience(keepalive_s=SHORT_S)) as (_, talk):
        reader, writer = await talk(b"GET / HTTP/1.1\r\n")
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"X: y\r\n")
            await asyncio.sleep(SHORT_S / 5)
        with suppress(ConnectionError):
            assert reading.result() == b""


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        _, writer = await talk(post(b"1"))
        await site.until(1)
        writer.transport.abort()
        reader, _ = await talk(get("a"))
        await read_reply(reader)
        promise.keep()
        reader, _ = await talk(get("a"))
        assert (await read_reply(reader))[0] == 200


async def test_a_client_found_gone_when_it_is_answered_costs_nothing() -> None:
    failures: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    async with open_site() as (site, talk):
        promise = site.hold()
        _, writer = await talk(post(b"1") + get("", target="/slow") + post(b"2"))
        await site.until(1)
        client = writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await writer.wait_closed()
        promise.keep()
        reader, _ = await talk(get("a"))
        await read_reply(reader)
    gc.collect()  # of tasks and coroutines that nobody waited for
    assert failures == []
    assert site.kept == [b"1"]


# -- bodies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/put", "/task"])
@pytest.mark.parametrize("cut", [0, 1, -1, 1000, 100_000])
async def test_a_large_body_arrives_whole_wherever_it_is_cut(target: str, cut: int) -> None:
    whole = post(LARGE, target=target)
    at = len(whole) - len(LARGE) + (cut if cut >= 0 else len(LARGE) + cut)
    async with open_site() as (site, talk):
        reader, writer = await talk(whole[:at])
        await writer.drain()
        await asyncio.sleep(SHORT_S)  # so that it comes apart; if it does not, all the better
        writer.write(whole[at:] + post(b"next"))
        assert [(await read_reply(reader))[0] for _ in range(2)] == [200, 200]
    assert site.kept == [LARGE, b"next"]


async def test_requests_around_large_bodies_are_answered_in_order() -> None:
    sent = [b"first", LARGE, b"small", LARGE[::-1], b"last"]
    async with open_site() as (site, talk):
        reader, _ = await talk(b"".join(map(post, sent)))
        assert [(await read_reply(reader))[0] for _ in sent] == [200] * 5
    assert site.kept == sent


async def test_bodies_share_what_is_lent_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LENT_BYTES_MAX", len(LARGE))  # one at a time
    async with open_site() as (site, talk):
        for target in ("/put", "/task", "/checked"):
            reader, writer = await talk(post(LARGE, target=target)[:-1])
            await writer.drain()
            writer.write_eof()
            await reader.read()
        readers = [(await talk(post(LARGE, target=target)))[0] for target in ("/put", "/task") * 3]
        for reader in readers:
            assert (await read_reply(reader))[0] == 200
        assert site.kept == [LARGE] * 6
        assert site.server._shared.buffers._lent_bytes == 0


async def test_who_closes_in_the_middle_gets_the_answers_to_what_was_whole() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, writer = await talk(post(b"whole") + post(LARGE)[:-1])
        await writer.drain()
        writer.write_eof()
        await site.until(1)
        (served,) = site.server._shared.connections
        while not served._ended:
            await asyncio.sleep(0)
        promise.keep()
        assert (await read_reply(reader))[2] == b"OK"
        assert await reader.read() == b""
    assert site.kept == [b"whole"]


async def test_a_body_that_stops_in_the_middle_ends_the_connection() -> None:
    hasty = Patience(body_s=SHORT_S, body_bytes_per_s=1e12, sweep_s=SHORT_S)
    async with open_site(hasty) as (site, talk):
        reader, _ = await talk(post(LARGE)[:-1])
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
    assert not site.kept
    assert site.server.dropped_count == 1


async def test_a_request_that_is_refused_before_its_body_need_not_send_it() -> None:
    async with open_site() as (site, talk):
        head = post(LARGE, target="/checked")[: -len(LARGE)]
        reader, _ = await talk(head)
        status, headers, body = await read_reply(reader)
    assert (status, body, headers["Connection"]) == (400, b'{"message":"REFUSED"}', "close")
    assert not site.kept


@pytest.mark.parametrize("where", ["announced", "chunked"])
async def test_a_body_over_the_limit_is_refused(where: str) -> None:
    async with open_site() as (site, talk):
        head = b"POST /put HTTP/1.1\r\nHost: h\r\n"
        if where == "announced":
            reader, _ = await talk(head + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1))
        else:
            reader, writer = await talk(head + b"Transfer-Encoding: chunked\r\n\r\n")
            size = BODY_BYTES_MAX + 1
            writer.write(b"%x\r\n" % size + bytes(size))
        status, headers, body = await read_reply(reader)
        assert (status, body) == (413, b'{"message":"TOO_BIG"}')
        assert headers["Connection"] == "close"
        assert await reader.read() == b""
    assert not site.kept


# -- an end in order --------------------------------------------------------------------------


async def test_closing_the_server_closes_idle_connections() -> None:
    async with open_site() as (_, talk):
        reader, _ = await talk(get("a"))
        await read_reply(reader)
    assert await reader.read() == b""


async def test_a_stopping_server_sends_what_is_due_and_begins_nothing() -> None:
    async with open_site() as (site, talk):
        promise = site.hold()
        reader, _ = await talk(post(b"1") + post(b"2", "Expect: 100-continue")[:-1])
        await site.until(1)
        asyncio.get_running_loop().call_later(SHORT_S, promise.keep)
    assert (await reader.read()).endswith(b"OK")
    assert site.kept == [b"1"]


async def test_a_stopping_server_does_not_wait_for_ever() -> None:
    async with open_site(Patience(stop_s=SHORT_S)) as (site, talk):
        site.hold()
        reader, _ = await talk(post(b"1"))
        await site.until(1)
    with suppress(ConnectionError):
        assert await reader.read() == b""


async def test_closing_the_server_ends_a_body_on_its_way() -> None:
    async with open_site() as (site, talk):
        reader, writer = await talk(post(LARGE)[:-1])
        await writer.drain()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)
    assert not site.kept
