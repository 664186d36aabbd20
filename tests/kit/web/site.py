"""A server with every kind of answer: at once, settled later, from a task, and large ones.

A `Site` notes what was asked of it. Answers to /put are held back until the test settles them, if
`hold` was called; else they are settled in the next turn of the loop.
"""

import asyncio

from pumpline.web.endpoint import BodyLimit, Endpoint, Settling
from pumpline.web.replies import OK, HttpError, Reply, error_reply, json_reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from pumpline.web.time_limits import Patience

LARGE_BYTES = 20_000_000  # no socket buffer takes that
BODY_BYTES_MAX = 3 << 20


class Promise(Settling):
    """An answer that comes when the test says so."""

    def keep(self, error: str = "") -> None:
        for waiting in self.settle(error_reply(503, error) if error else OK):
            waiting.flush()


class TestSite:
    __test__ = False

    def __init__(self, patience: Patience | None = None) -> None:
        self.asked: list[str] = []
        self.kept: list[bytes] = []  # bodies that were put
        self.promise: Promise | None = None  # to those who put something
        self.go = asyncio.Event()  # for /slow
        limit = BodyLimit(BODY_BYTES_MAX, "TOO_BIG")
        routes = Routes(
            {
                ("GET", "/find"): Endpoint(self.find),
                ("POST", "/find"): Endpoint(self.find),
                ("GET", "/slow"): Endpoint(self.slow),
                ("POST", "/put"): Endpoint(self.put, body=limit),
                ("POST", "/task"): Endpoint(self.task, body=limit),
                ("POST", "/checked"): Endpoint(self.put, body=limit, check=self.refuse),
            }
        )
        self.server = HttpServer(routes, patience=patience)

    def hold(self) -> Promise:
        """From now on, answers to /put are held back."""
        self.promise = Promise()
        return self.promise

    async def until(self, count: int) -> None:
        """So many requests were seen."""
        while len(self.asked) < count:
            await asyncio.sleep(0)

    def find(self, request: Request) -> Reply:
        self.asked.append("find")
        word = request.query().get("word", "")
        if not word:
            raise HttpError(404, "NO_WORD")
        return json_reply({"word": "x" * LARGE_BYTES if word == "large" else word})

    async def slow(self, request: Request) -> Reply:
        self.asked.append("slow")
        await self.go.wait()
        return Reply(body=b"slow")

    def put(self, request: Request) -> Promise:
        self.asked.append("put")
        self.kept.append(request.body)
        if self.promise is not None:
            return self.promise
        soon = Promise()
        asyncio.get_running_loop().call_soon(soon.keep)
        return soon

    async def task(self, request: Request) -> Reply:
        self.asked.append("task")
        await asyncio.sleep(0)
        self.kept.append(request.body)
        return Reply(body=b"%d" % len(request.body))

    def refuse(self, request: Request) -> None:
        raise HttpError(400, "REFUSED")


def get(word: str, *headers: str, target: str = "/find?word={}") -> bytes:
    lines = [f"GET {target.format(word)} HTTP/1.1", "Host: h", *headers]
    return "\r\n".join((*lines, "", "")).encode()


def post(body: bytes, *headers: str, target: str = "/put") -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


def chunked(*pieces: bytes, target: str = "/put", trailer: bytes = b"") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + chunks + b"0\r\n" + trailer + b"\r\n"


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("Content-Length", 0)))
    return int(status.split()[1]), headers, body
