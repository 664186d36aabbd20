"""The requests of nsq_to_http against servers that answer as servers do, or worse."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import pytest
from yarl import URL

from pumpline.tools.nsq_to_http.kept_connections import (
    HEAD_BYTES_MAX,
    KeptConnections,
    NoHttpAnswer,
    RequestAnswer,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSE = b"CLOSE"  # in place of an answer, or after it


@dataclass
class Server:
    """Answers requests with what it was given, in turn; with the last one again and again."""

    answers: Sequence[bytes]
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0
    waiting: int = 0
    most_waiting: int = 0
    url: URL = field(default_factory=URL)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await self._head(reader):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            self.asked.append(head + await reader.readexactly(length))
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
            await asyncio.sleep(0)
            self.waiting -= 1
            answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
            writer.write(answer.removesuffix(CLOSE))
            if answer.endswith(CLOSE):
                break
        writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return b""


@asynccontextmanager
async def serving(*answers: bytes, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    served = Server(answers)
    server = await asyncio.start_server(served.serve, host, 0)
    served.url = URL(f"http://{host}:{server.sockets[0].getsockname()[1]}/x?y=1")
    async with server:
        yield served


def client(*, requests_max: int = 10, timeout_s: float = 30.0, **headers: str) -> KeptConnections:
    return KeptConnections(
        headers, requests_max=requests_max, connect_timeout_s=30.0, timeout_s=timeout_s
    )


async def post(asking: KeptConnections, url: URL, body: bytes = b"body") -> RequestAnswer:
    return await asking.ask(asking.target("POST", url), body)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ],
)
async def test_a_connection_is_used_again(answer: bytes) -> None:
    async with serving(answer) as server:
        asking = client(**{"X-A": "1"})
        for _ in range(3):
            assert (await post(asking, server.url)).status in (200, 204)
        asking.close()
        assert server.connections == 1
        host = f"Host: 127.0.0.1:{server.url.port}".encode()
        lines = [b"POST /x?y=1 HTTP/1.1", host, b"X-A: 1", b"Content-Length: 4", b"", b"body"]
        assert server.asked == [b"\r\n".join(lines)] * 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end" + CLOSE,
        OK + CLOSE,
        OK + OK,
        OK + b"more",
        b"HTTP/1.1 101 X\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_a_connection_that_is_of_no_more_use_is_not_used_again(answer: bytes) -> None:
    async with serving(answer) as server:
        asking = client()
        for _ in range(3):
            assert (await post(asking, server.url)).status in (101, 200)
        asking.close()
        assert server.connections == 3


async def test_a_request_on_a_connection_that_had_ended_is_sent_again() -> None:
    async with serving(OK, CLOSE, OK) as server:
        asking = client()
        assert (await post(asking, server.url)).status == 200
        assert (await post(asking, server.url)).status == 200
        asking.close()
        assert server.connections == 2 and len(server.asked) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CLOSE, "closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi" + CLOSE, "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * HEAD_BYTES_MAX, "too long"),
    ],
)
async def test_what_is_no_answer_is_told(answer: bytes, said: str) -> None:
    async with serving(answer) as server:
        with pytest.raises(NoHttpAnswer, match=said):
            await post(client(), server.url)


async def test_a_server_that_does_not_answer_is_waited_for_as_long_as_was_said() -> None:
    async with serving(b"") as server:
        with pytest.raises(TimeoutError):
            await post(client(timeout_s=0.05), server.url)


async def test_where_nobody_listens_all_requests_hear_of_it() -> None:
    async with serving(OK) as server:
        pass
    asking = client(requests_max=100)
    failures = await asyncio.gather(
        *(post(asking, server.url) for _ in range(100)), return_exceptions=True
    )
    assert all(isinstance(failure, ConnectionError) for failure in failures)
    assert all("Connect call failed" in str(failure) for failure in failures)


async def test_requests_side_by_side_are_as_many_as_was_said() -> None:
    async with serving(OK) as server:
        asking = client(requests_max=3)
        answers = await asyncio.gather(*(post(asking, server.url) for _ in range(20)))
        asking.close()
        assert {answer.status for answer in answers} == {200}
        assert server.connections <= 3 and server.most_waiting <= 3 and len(server.asked) == 20


@pytest.mark.parametrize(("status", "method"), [(301, b"GET"), (303, b"GET"), (307, b"POST")])
async def test_a_redirect_is_followed(status: int, method: bytes) -> None:
    away = b"HTTP/1.1 %d X\r\nLocation: /z?q=1\r\nContent-Length: 0\r\n\r\n" % status
    async with serving(away, OK) as server:
        asking = client()
        assert (await post(asking, server.url)).status == 200
        asking.close()
        assert server.asked[1].startswith(method + b" /z?q=1 HTTP/1.1\r\n")
        assert server.asked[1].endswith(b"\r\n\r\nbody" if method == b"POST" else b"\r\n\r\n")


def moved(url: URL) -> bytes:
    return b"HTTP/1.1 307 X\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % str(url).encode()


async def test_credentials_do_not_follow_a_redirect_to_another_host() -> None:
    """Nor do they come back when that host redirects to where the request began."""
    secrets = {"Authorization": "Bearer s3cret", "COOKIE": "id=s3cret", "X-Kept": "yes"}
    async with (
        serving(OK) as last,
        serving(moved(last.url), host="127.0.0.2") as other,
        serving(moved(other.url)) as first,
    ):
        with closing(client(**secrets)) as asking:
            await post(asking, first.url)
    assert first.asked[0].count(b"s3cret") == 2
    assert b"X-Kept: yes" in other.asked[0] and b"X-Kept: yes" in last.asked[0]
    assert b"s3cret" not in other.asked[0] + last.asked[0]


async def test_credentials_follow_a_redirect_to_another_port() -> None:
    async with serving(OK) as second, serving(moved(second.url)) as first:
        with closing(client(Authorization="Bearer s3cret")) as asking:
            await post(asking, first.url)
    assert b"s3cret" in second.asked[0]


async def test_redirects_without_end_are_told() -> None:
    async with serving(b"HTTP/1.1 302 X\r\nLocation: /\r\nContent-Length: 0\r\n\r\n") as server:
        with closing(client()) as asking, pytest.raises(NoHttpAnswer, match="more than 10 times"):
            await post(asking, server.url)


async def test_a_name_and_a_password_in_the_url_are_sent_but_not_over_a_header_given() -> None:
    async with serving(OK) as server:
        url = server.url.with_user("u").with_password("p:%")
        for asking in (client(), client(Authorization="Bearer z")):
            with closing(asking):
                await post(asking, url)
        assert b"\r\nAuthorization: Basic dTpwOiU=\r\n" in server.asked[0]
        assert server.asked[1].count(b"Authorization") == 1
        assert b"\r\nAuthorization: Bearer z\r\n" in server.asked[1]


@pytest.mark.parametrize("url", ["ftp://h/x", "/x", "h:80", ""])
async def test_a_url_that_is_none_of_http_is_told(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of HTTP"):
        client().target("POST", URL(url))


async def test_a_header_makes_no_other() -> None:
    with pytest.raises(ValueError, match="line break"):
        client(A="1\r\nB: 2").target("POST", URL("http://h/"))


async def test_a_large_body_arrives() -> None:
    async with serving(OK) as server:
        asking = client()
        assert (await post(asking, server.url, b"x" * 3_000_000)).status == 200
        asking.close()
        assert server.asked[0].endswith(b"x" * 3_000_000)
