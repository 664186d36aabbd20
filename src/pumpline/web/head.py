"""The head of a request: its bytes, checked and read by llhttp, and what they say.

llhttp is strict: lines end in CRLF, values are not folded, and a Content-Length stands alone. Four
things are decided here, as NSQ's daemons (Go's net/http) decide them:

| head                                              | here                                       |
|---------------------------------------------------|--------------------------------------------|
| the same Content-Length several times             | counts once; different ones are a 400      |
| Transfer-Encoding other than one `chunked`        | 501                                        |
| Transfer-Encoding in HTTP/1.0                     | 400                                        |
| HTTP/0.9, HTTP/2.0                                | 505                                        |

Pure: bytes in, a `Head` or `BadRequest` out. Knows no connection and no routes.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from pumpline.web.query import parse_query

HEAD_END = b"\r\n\r\n"
CHUNKED = -1  # in place of the length of a body

_VERSIONS = ("1.1", "1.0")
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_ENCODING_LINE = re.compile(
    rb"\r\ntransfer-encoding:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE
)
_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding)", re.IGNORECASE)
_CAN_CONTINUE = "100-continue"


class BadRequest(Exception):
    """What came is no request that can be answered; the connection ends with this status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Head:
    """What a head says. The same object serves every request that repeats its bytes."""

    __slots__ = (
        "_fields",
        "_query",
        "body_bytes",
        "expectation",
        "is_ordinary",
        "keep_alive",
        "method",
        "path",
        "raw_query",
        "target",
        "version",
    )

    def __init__(
        self,
        method: str,
        target: str,
        fields: Mapping[str, list[str]],
        *,
        version: str = "1.1",
        keep_alive: bool = True,
        body_bytes: int = 0,
    ) -> None:
        """`fields` are the values of each header, by its name in lower case; `body_bytes` may be
        CHUNKED."""
        self.method = method
        self.target = _origin_form(target)
        self.path, _, self.raw_query = self.target.partition("?")
        self.version = version
        self.keep_alive = keep_alive
        self.is_ordinary = version == "1.1" and method != "HEAD"  # the reply has no odd lines
        self.body_bytes = body_bytes
        self._fields = fields
        self._query: dict[str, str] | None = None
        self.expectation = self.values("expect")[0].lower() if "expect" in fields else ""

    def values(self, name: str) -> list[str]:
        """Every value given for a header."""
        return self._fields.get(name.lower(), [])

    def query(self) -> Mapping[str, str]:
        """The parameters of the query string, found once; QueryError if it is malformed."""
        if self._query is None:
            self._query = parse_query(self.raw_query)
        return self._query

    @property
    def waits_to_go_on(self) -> bool:
        """Whether the client sends its body only after `100 Continue`; HTTP/1.0 has no such."""
        return self.expectation == _CAN_CONTINUE and self.version != "1.0"

    @property
    def expectation_is_met(self) -> bool:
        return self.expectation in ("", _CAN_CONTINUE)


class HeadCheck:
    """Finds out early that a head, of which only a part is there, will never be one."""

    def __init__(self) -> None:
        self.fed_bytes = 0
        self._parser = HttpRequestParser(_Fields())

    def feed(self, head: bytes | bytearray) -> None:
        """`head` is all that there is of it by now."""
        fresh = head[self.fed_bytes :]
        self.fed_bytes = len(head)
        try:
            self._parser.feed_data(fresh)
        except HttpParserError as error:
            if not _FRAMING.search(head):  # else the whole head is needed to tell what is wrong
                raise _refusal(self._parser, error) from None


def parse_head(raw: bytes) -> Head:
    """`raw` ends with HEAD_END, and has it nowhere before."""
    seen = _Fields()
    parser = HttpRequestParser(seen)
    parser.set_dangerous_leniencies(lenient_transfer_encoding=True)  # _body_bytes decides
    try:
        parser.feed_data(_with_one_length(raw))
    except HttpParserUpgrade:
        pass  # an offer, which is declined by answering in HTTP/1.1
    except HttpParserError as error:
        _check_encodings(_ENCODING_LINE.findall(raw))  # says more than llhttp does
        raise _refusal(parser, error) from None
    version = parser.get_http_version()
    if version not in _VERSIONS:
        raise _unsupported_version()
    return Head(
        parser.get_method().decode(),
        seen.url.decode("utf-8", "surrogateescape"),
        seen.fields,
        version=version,
        keep_alive=_keeps_alive(seen.fields, version),
        body_bytes=_body_bytes(seen.fields, version),
    )


class _Fields:
    """What llhttp reports."""

    def __init__(self) -> None:
        self.url = b""
        self.fields: dict[str, list[str]] = {}

    def on_url(self, piece: bytes) -> None:
        self.url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        text = value.rstrip(b" \t").decode("utf-8", "surrogateescape")
        self.fields.setdefault(name.decode("ascii").lower(), []).append(text)


def _with_one_length(raw: bytes) -> bytes:
    """`raw` without repetitions of its Content-Length, which llhttp refuses whatever they say."""
    lengths = _LENGTH_LINE.findall(raw)
    if len(lengths) < 2:
        return raw
    if len(set(lengths)) > 1:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "several lengths")
    return _LENGTH_LINE.sub(b"", raw, count=len(lengths) - 1)


def _body_bytes(fields: Mapping[str, list[str]], version: str) -> int:
    encodings = fields.get("transfer-encoding")
    if encodings is None:
        return int(fields.get("content-length", ["0"])[0])
    if version == "1.0":
        raise BadRequest(HTTPStatus.BAD_REQUEST, "Transfer-Encoding in HTTP/1.0")
    _check_encodings([encoding.encode("utf-8", "surrogateescape") for encoding in encodings])
    return CHUNKED


def _check_encodings(encodings: list[bytes]) -> None:
    if encodings and [encoding.lower() for encoding in encodings] != [b"chunked"]:
        raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "Unsupported transfer encoding")


def _keeps_alive(fields: Mapping[str, list[str]], version: str) -> bool:
    """Whether there may be another request. llhttp would say so only while it is in the head."""
    wishes = ",".join(fields.get("connection", ())).lower().split(",")
    words = {wish.strip(" \t") for wish in wishes}
    return "close" not in words and (version != "1.0" or "keep-alive" in words)


def _refusal(parser: HttpRequestParser, error: HttpParserError) -> BadRequest:
    if parser.get_http_version() == "2.0":
        return _unsupported_version()
    return BadRequest(HTTPStatus.BAD_REQUEST, str(error))


def _unsupported_version() -> BadRequest:
    return BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "unsupported protocol version")


def _origin_form(target: str) -> str:
    """Path and query of a request target; proxies are sent whole URLs."""
    if target.startswith("/"):
        return target
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    return (parts.path or "/") + ("?" + parts.query if parts.query else "")
