"""A server some of whose answers can be had a shorter way, which notes the way of each.

`asked` says how the answers came, `kept` what was put, and `promises` holds back the answers to
those who put something, until the test settles them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from pumpline.web.query import parse_query
from pumpline.web.replies import OK, HttpError, Reply, json_reply
from pumpline.web.routes import Routes
from pumpline.web.server import Endpoint, HttpServer, Request
from pumpline.web.shortcut import Shortcut, Take
from pumpline.web.time_limits import Patience
from tests.kit.serving import Talk
from tests.kit.serving import serving as served

LARGE_BYTES = 20_000_000  # no socket buffer takes that
BODY_BYTES_MAX = 1000
LAST = b"GET /find?word=last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

asked: list[str] = []  # which way the answers came
kept: list[bytes] = []  # bodies that were put


class Promise:
    """An answer that comes when the test says so."""

    def __init__(self) -> None:
        self.done = False
        self.error = ""
        self._waiting: list[Shortcut] = []

    def wait(self, connection: Shortcut) -> None:
        assert not self.done
        self._waiting.append(connection)

    def reply(self) -> Reply:
        if self.error:
            raise HttpError(503, self.error)
        return OK

    def settle(self, error: str = "") -> None:
        self.done, self.error = True, error
        for connection in self._waiting:
            connection.flush()


promises: list[Promise] = []  # to those who put something, the last one for those to come


def find(raw_query: str) -> bytes:
    asked.append("at once")
    return answer(raw_query)


def answer(raw_query: str) -> bytes:
    word = parse_query(raw_query).get("word", "")
    if not word:
        raise HttpError(404, "NO_WORD")
    return msgspec.json.encode({"word": "x" * LARGE_BYTES if word == "large" else word})


async def handle(request: Request) -> Reply:
    asked.append("long way")
    request.query()
    return json_reply(msgspec.Raw(answer(request.raw_query)))


def short_put(raw_query: str, body_bytes: int) -> Take | None:
    return put if not raw_query and 0 < body_bytes <= BODY_BYTES_MAX else None


def put(body: bytes) -> Promise:
    asked.append("later")
    kept.append(body)
    if not promises:
        promises.append(Promise())
        asyncio.get_running_loop().call_soon(promises[0].settle)
        return promises.pop()
    return promises[-1]


async def handle_put(request: Request) -> Reply:
    asked.append("long way")
    body = bytes(await request.body(BODY_BYTES_MAX, too_big="TOO_BIG"))
    if not body:
        raise HttpError(400, "EMPTY")
    kept.append(body)
    return OK


ROUTES = Routes(
    {
        ("GET", "/find"): Endpoint(handle, instant=find),
        ("POST", "/find"): Endpoint(handle),
        ("POST", "/put"): Endpoint(handle_put, short=short_put),
    }
)
LONG_ROUTES = Routes(
    {
        ("GET", "/find"): Endpoint(handle),
        ("POST", "/find"): Endpoint(handle),
        ("POST", "/put"): Endpoint(handle_put),
    }
)


def forget() -> None:
    """As before any request."""
    for memory in (asked, kept, promises):
        memory.clear()


@asynccontextmanager
async def serving(
    routes: Routes[Endpoint] = ROUTES, patience: Patience | None = None
) -> AsyncIterator[Talk]:
    server = HttpServer(routes, patience=patience)
    async with served(server, read_bytes_max=LARGE_BYTES) as talk:
        yield talk


def get(word: str, *headers: str, target: str = "/find?word={}") -> bytes:
    lines = [f"GET {target.format(word)} HTTP/1.1", "Host: h", *headers]
    return "\r\n".join((*lines, "", "")).encode()


def post(body: bytes, *headers: str, target: str = "/put") -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


async def until(count: int) -> None:
    """So many requests were seen."""
    while len(asked) < count:
        await asyncio.sleep(0)


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers["Content-Length"]))
    return int(status.split()[1]), headers, body
