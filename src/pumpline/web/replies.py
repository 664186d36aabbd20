"""Replies of NSQ's daemons over HTTP, and their bytes.

| reply                   | status     | body                 | headers                          |
|-------------------------|------------|----------------------|----------------------------------|
| success with data       | 200        | JSON                 | Content-Type, X-NSQ-Content-Type |
| success in words        | 200        | text                 | Content-Type, X-NSQ-Content-Type |
| success with nothing    | 200        | none                 | X-NSQ-Content-Type               |
| error                   | 4xx or 5xx | {"message":"<CODE>"} | Content-Type, X-NSQ-Content-Type |
| wrong method            | 405        | as an error          | and Allow                        |
| OPTIONS on a known path | 200        | none                 | Allow                            |
| path almost right       | 301        | HTML with a link     | Location, Content-Type (GET)     |
|                         | 307        | none                 | Location (other methods)         |
| not HTTP                | 4xx or 5xx | the status in words  | Content-Type, Connection: close  |
"""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Protocol

import msgspec

from pumpline import __version__
from pumpline.web.stream_sink import StreamSink

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

_NSQ_HEADERS = {"X-NSQ-Content-Type": "nsq; version=1.0"}
JSON_HEADERS = {**_NSQ_HEADERS, "Content-Type": JSON}
SERVER = f"pumpline/{__version__}"
# As Go escapes them.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


class HttpError(Exception):
    """A request cannot be done: a status, and NSQ's code for the reason; maybe details."""

    def __init__(
        self,
        status: int,
        code: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.headers = headers or {}
        self.details = details or {}

    def reply(self) -> "Reply":
        return error_reply(self.status, self.code, headers=self.headers, details=self.details)


class Stream(Protocol):
    """The body of a reply that is sent piece by piece."""

    endless: bool  # goes on as long as its client does: one that closes its side is gone

    @property
    def length_bytes(self) -> int | None:
        """None: nobody knows yet."""
        ...

    async def send(self, sink: StreamSink) -> None:
        """Send it all; ConnectionError when the client is gone."""
        ...

    def close(self) -> None:
        """Nothing will be sent any more."""
        ...


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    stream: Stream | None = None  # instead of the body


def json_reply(value: object, *, status: int = 200) -> Reply:
    return Reply(status=status, body=msgspec.json.encode(value), headers=JSON_HEADERS)


def text_reply(text: str) -> Reply:
    body = text.encode("utf-8", "surrogateescape")
    headers = {**_NSQ_HEADERS, "Content-Type": TEXT} if body else _NSQ_HEADERS
    return Reply(body=body, headers=headers)


def plain_reply(text: str, *, status: int = 200, content_type: str = TEXT) -> Reply:
    """Text without NSQ's header, as /ping and /debug give it."""
    body = text.encode("utf-8", "surrogateescape")
    return Reply(status=status, body=body, headers={"Content-Type": content_type})


def stream_reply(stream: Stream, headers: dict[str, str]) -> Reply:
    return Reply(stream=stream, headers={**_NSQ_HEADERS, **headers})


def error_reply(
    status: int,
    code: str,
    *,
    headers: Mapping[str, str] | None = None,
    details: Mapping[str, object] | None = None,
) -> Reply:
    reply = json_reply({"message": code, **(details or {})}, status=status)
    if not headers:
        return reply
    return Reply(status=status, body=reply.body, headers={**reply.headers, **headers})


OK = text_reply("OK")
NOTHING = text_reply("")


def redirect_reply(method: str, location: str) -> Reply:
    """To the path that was meant; a link for people, as Go's http.Redirect gives it."""
    if method != "GET":
        return Reply(status=307, headers={"Location": location})
    link = f'<a href="{location.translate(_ESCAPES)}">Moved Permanently</a>.\n\n'
    headers = {"Content-Type": HTML, "Location": location}
    return Reply(status=301, body=link.encode(), headers=headers)


def bad_request_reply(status: HTTPStatus, reason: str) -> Reply:
    """To what is no HTTP."""
    text = f"{status.value} {status.phrase}: {reason}"
    return plain_reply(text, status=status)


class ReplyEncoder:
    """Replies as bytes. Most have the status and the very headers of the one before, and many are
    the same object: what does not change is made once a second."""

    def __init__(self) -> None:
        self._now_s = 0
        self._date = ""
        self._last: Reply | None = None
        self._last_bytes = b""
        self._start = b""  # of the last reply, up to its length

    def encode(self, reply: Reply) -> bytes:
        """To an ordinary request in HTTP/1.1, on a connection that stays."""
        if int(time.time()) != self._now_s:
            self._set_date()
        last = self._last
        if reply is not last:
            if last is None or reply.headers is not last.headers or reply.status != last.status:
                self._start = self.head(reply, "Content-Length: ").removesuffix(b"\r\n\r\n")
            self._last_bytes = b"%b%d\r\n\r\n%b" % (self._start, len(reply.body), reply.body)
            self._last = reply
        return self._last_bytes

    def head(self, reply: Reply, *more: str, version: str = "1.1") -> bytes:
        """The head alone; `more` are its last lines."""
        if int(time.time()) != self._now_s:
            self._set_date()
        status = HTTPStatus(reply.status)
        lines = [f"HTTP/{version} {status.value} {status.phrase}", f"Server: {SERVER}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        return "\r\n".join((*lines, f"Date: {self._date}", *more, "", "")).encode()

    def _set_date(self) -> None:
        self._now_s = int(time.time())
        self._date = http_date(self._now_s)
        self._last = None


def http_date(now_s: int) -> str:
    """As in `Mon, 16 Nov 2026 15:50:21 GMT`; email.utils would cost 6 ms of every start."""
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(now_s)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year} {clock} GMT"
