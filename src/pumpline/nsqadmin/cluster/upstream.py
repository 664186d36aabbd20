"""Asking nsqds and nsqlookupds over HTTP, many of them side by side.

Every wait and every answer is bounded, so 20 dead nodes cost as much time as one. A node that wants
TLS says at which port, and is asked there from then on. Errors have NSQ's words where a node
answered: `got response 404 Not Found "{\\"message\\":…}"`.

Knows addresses and bytes; must not know what the answers mean.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from pumpline.core.text.addresses import split_address
from pumpline.core.text.durations import format_duration
from pumpline.core.text.names import go_quote
from pumpline.web.http_client import Asker, NoAnswer

ANSWER_BYTES_MAX = 256 << 20
ASKED_MAX = 64  # side by side
REQUESTS_MAX = 8 * ASKED_MAX  # several may ask; who waited for a turn would time out
ERROR_CHARS_MAX = 500  # of what a node answers, told to a person
SILENCE_S = 60.0  # of a tail, in which nsqd sends a sign of life every 15 s

T = TypeVar("T")
K = TypeVar("K")


class UpstreamError(Exception):
    """A daemon gives no answer, or refuses."""

    def __init__(self, text: str, *, short: str = "", status: int = 0, body: bytes = b"") -> None:
        super().__init__(text)
        self._short = short or text  # without whom it is about
        self.status = status  # 0: no answer
        self.body = body

    @property
    def code(self) -> str:
        """What it said in `message`; empty if it said nothing."""
        code = self.details().get("message", "")
        return code if isinstance(code, str) else ""

    def details(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def words(self) -> str:
        """For a person who knows whom it is about."""
        if not self.status:
            return self._short
        said = self.code or self.body.decode(errors="replace").strip()[:ERROR_CHARS_MAX]
        detail = self.details().get("detail")
        return f"{self.status} {said}" + (f": {detail}" if isinstance(detail, str) else "")


class Outcome(NamedTuple, Generic[K, T]):
    """What was answered, and what failed, in the order of asking."""

    answers: dict[K, T]
    errors: dict[K, UpstreamError]

    @property
    def all_failed(self) -> bool:
        return bool(self.errors) and not self.answers

    def texts(self) -> list[str]:
        return [str(error) for error in self.errors.values()]


class Upstream:
    def __init__(
        self,
        *,
        connect_timeout_ns: int,
        timeout_ns: int,
        tls: ssl.SSLContext | None,
        access_token: str = "",
        gets_token: Callable[[str], bool] = lambda address: True,
    ) -> None:
        """`access_token` is for nsqds; `gets_token` says whether an address may be one."""
        limits: dict[str, Any] = {
            "connect_timeout_ns": connect_timeout_ns,
            "timeout_ns": timeout_ns,
            "requests_max": REQUESTS_MAX,
            "answer_bytes_max": ANSWER_BYTES_MAX,
            "follows": False,
            "tls": tls,
        }
        self._timeout_ns = timeout_ns
        self._reads = Asker(keeps=True, **limits)
        self._writes = Asker(**limits)  # a new connection each: a stale one would lose the write
        self._tails = Asker(**{**limits, "requests_max": 0})
        self._token_headers: dict[str, str] = {}
        self._gets_token = gets_token
        self.use_token(access_token)
        self._https_ports: dict[str, int] = {}

    def use_token(self, access_token: str) -> None:
        """From now on; empty for none."""
        token = {"Authorization": f"Bearer {access_token}"} if access_token else {}
        self._token_headers = token

    async def close(self) -> None:
        for asker in (self._reads, self._writes, self._tails):
            await asker.close()

    async def get(self, address: str, path: str, query: Mapping[str, object]) -> bytes:
        """The answer, of status 200, or UpstreamError."""
        return await self._ask(self._reads, address, path, query, method="GET")

    async def post(
        self, address: str, path: str, query: Mapping[str, object], body: bytes = b""
    ) -> bytes:
        return await self._ask(self._writes, address, path, query, method="POST", body=body)

    async def get_as(
        self, kind: type[T], address: str, path: str, query: Mapping[str, object]
    ) -> T:
        """The answer as JSON of that type."""
        return decoded(await self.get(address, path, query), kind)

    @asynccontextmanager
    async def tail(
        self, address: str, path: str, query: Mapping[str, object]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer without end, in pieces."""
        await self._learn_port(address)
        url = self._url(address, path, query)
        try:
            listening = self._tails.listen(url, headers=self._headers(address), silence_s=SILENCE_S)
            async with listening as (status, pieces):
                if status != 200:
                    raise refusal(status, await anext(pieces, b""))
                yield pieces
        except NoAnswer as error:
            raise UpstreamError(str(error)) from None
        except TimeoutError:
            raise UpstreamError("it sends nothing any more") from None

    async def each(self, keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> Outcome[K, T]:
        """Ask all of them side by side."""
        asked = list(dict.fromkeys(keys))
        room = asyncio.Semaphore(ASKED_MAX)

        async def one(key: K) -> T | UpstreamError:
            async with room:
                try:
                    return await ask(key)
                except UpstreamError as error:
                    return error

        outcome: Outcome[K, T] = Outcome({}, {})
        for key, said in zip(asked, await asyncio.gather(*map(one, asked)), strict=True):
            if isinstance(said, UpstreamError):
                outcome.errors[key] = said
            else:
                outcome.answers[key] = said
        return outcome

    async def _ask(
        self,
        asker: Asker,
        address: str,
        path: str,
        query: Mapping[str, object],
        *,
        method: str,
        body: bytes | None = None,
    ) -> bytes:
        status, answer = await self._exchange(asker, address, path, query, method, body)
        if status == 403 and (port := _https_port(answer)):
            self._https_ports[address] = port
            status, answer = await self._exchange(asker, address, path, query, method, body)
        if status != 200:
            raise refusal(status, answer)
        return answer

    async def _exchange(
        self,
        asker: Asker,
        address: str,
        path: str,
        query: Mapping[str, object],
        method: str,
        body: bytes | None,
    ) -> tuple[int, bytes]:
        url = self._url(address, path, query)
        headers = self._headers(address)
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
        try:
            return await asker.ask(url, body, method=method, headers=headers)
        except NoAnswer as error:
            raise UpstreamError(str(error)) from None
        except TimeoutError:
            waited = format_duration(self._timeout_ns)
            raise UpstreamError(
                f"no answer from {address} within {waited}", short=f"no answer within {waited}"
            ) from None

    def _headers(self, address: str) -> dict[str, str]:
        return dict(self._token_headers) if self._gets_token(address) else {}

    async def _learn_port(self, address: str) -> None:
        """Whether the node wants TLS: only an answer tells."""
        if address not in self._https_ports:
            await self._ask(self._reads, address, "/ping", {}, method="GET")

    def _url(self, address: str, path: str, query: Mapping[str, object]) -> str:
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path
        port = self._https_ports.get(address)
        if port is None:
            return f"http://{address}{target}"
        host = address.rpartition(":")[0]
        return f"https://{host}:{port}{target}"


def refusal(status: int, body: bytes) -> UpstreamError:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    text = f"got response {status} {phrase} {go_quote(body[:ERROR_CHARS_MAX])}"
    return UpstreamError(text, status=status, body=body)


def decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> UpstreamError:
    return UpstreamError(f"failed to parse the answer: {error}")


def is_address(text: str) -> bool:
    """Whether it can be asked: what nodes say of themselves becomes part of a URL."""
    try:
        host, port = split_address(text)
    except ValueError:
        return False
    return bool(host) and port > 0 and not set(host) & set("/?#@\\ \t\r\n%")


def _https_port(answer: bytes) -> int:
    port = UpstreamError("", body=answer).details().get("https_port")
    return port if isinstance(port, int) and 0 < port < 1 << 16 else 0
