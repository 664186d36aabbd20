"""Replies of NSQ's daemons over HTTP, and their bytes where aiohttp is not asked to make them.

| reply                   | status     | body                 | headers                          |
|-------------------------|------------|----------------------|----------------------------------|
| success with data       | 200        | JSON                 | Content-Type, X-NSQ-Content-Type |
| success in words        | 200        | text                 | Content-Type, X-NSQ-Content-Type |
| success with nothing    | 200        | none                 | X-NSQ-Content-Type               |
| error                   | 4xx or 5xx | {"message":"<CODE>"} | Content-Type, X-NSQ-Content-Type |
| wrong method            | 405        | as an error          | and Allow                        |
| OPTIONS on a known path | 200        | none                 | Allow                            |
| path almost right       | 301, 307   | none                 | Location (301 for GET)           |
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus

import msgspec

from pumpline import __version__
from pumpline.web.streams import Stream

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

_NSQ_HEADERS = {"X-NSQ-Content-Type": "nsq; version=1.0"}
SERVER = f"pumpline/{__version__}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: Stream | None = None  # instead of the body


def json_reply(value: object, *, status: int = 200) -> Reply:
    headers = {**_NSQ_HEADERS, "Content-Type": JSON}
    return Reply(status=status, body=msgspec.json.encode(value), headers=headers)


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
    return replace(reply, headers={**reply.headers, **headers}) if headers else reply


OK = text_reply("OK")
NOTHING = text_reply("")


class Encoder:
    """Replies as the bytes aiohttp would send on a connection that stays."""

    def __init__(self) -> None:
        self._now_s = 0
        self._date = b""  # the header's value, made once a second
        self._last: Reply | None = None  # encoded in this second: it is often the next
        self._last_bytes = b""

    def encode(self, reply: Reply) -> bytes:
        if int(time.time()) != self._now_s:
            self._set_date()
        if reply is not self._last:
            head = _head_format(reply.status, reply.headers)
            self._last_bytes = head % (len(reply.body), self._date) + reply.body
            self._last = reply
        return self._last_bytes

    def encode_json(self, body: bytes) -> bytes:
        """A success with this JSON."""
        if int(time.time()) != self._now_s:
            self._set_date()
        return _JSON_HEAD % (len(body), self._date) + body

    def _set_date(self) -> None:
        self._now_s = int(time.time())
        self._date = formatdate(self._now_s, usegmt=True).encode()
        self._last = None


def _head_format(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of a reply, to be filled in with the length of the body and the date."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Server: {SERVER}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join(lines).replace("%", "%%")
    return text.encode() + b"\r\nContent-Length: %d\r\nDate: %b\r\n\r\n"


_JSON_HEAD = _head_format(200, json_reply(None).headers)
