"""Asking others over HTTP: with a limit on every wait, and on the length of what they answer.

Importing aiohttp takes as long as all the rest of a start, and many daemons ask nobody: `ready`
does it, in a thread. Of what may go wrong a caller sees TimeoutError and `NoAnswer`. Its text says
why there is no connection; of other failures it names the kind alone, as aiohttp's words may hold
the URL, and that a secret.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from pumpline import __version__
from pumpline.core.text.durations import NS_PER_S

if TYPE_CHECKING:  # imported when somebody is asked
    import ssl

    import aiohttp

_HEADERS = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"pumpline/{__version__}"}


class NoAnswer(Exception):
    """There is none, or none that will do."""


class Asker:
    """Asks any number of servers."""

    def __init__(
        self,
        *,
        connect_timeout_ns: int,
        timeout_ns: int,
        requests_max: int,
        answer_bytes_max: int,
        follows: bool = True,
        keeps: bool = False,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        """A timeout of 0 is none. Of more than `requests_max` requests at a time, some wait.
        `follows`: goes where it is redirected to. `keeps`: uses connections again, which is for
        what may be asked twice."""
        self._connect_timeout_ns = connect_timeout_ns
        self._timeout_ns = timeout_ns
        self._requests_max = requests_max
        self._answer_bytes_max = answer_bytes_max
        self._follows = follows
        self._keeps = keeps
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        url: str,
        json: bytes | None = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a GET, or to a POST of this JSON."""
        asking = self._asking(url, json, method=method, headers=headers)
        async with asking as response, _told():
            return response.status, await self._read(response)

    @asynccontextmanager
    async def listen(
        self, url: str, *, headers: Mapping[str, str] | None = None, silence_s: float
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Status and pieces of an answer without end. TimeoutError when none comes for a while."""
        await self.ready()
        import aiohttp

        connect_s = self._connect_timeout_ns / NS_PER_S or None
        limits = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence_s)
        async with self._asking(url, headers=headers, timeout=limits) as response:
            yield response.status, _pieces(response)

    @asynccontextmanager
    async def _asking(
        self,
        url: str,
        json: bytes | None = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: "aiohttp.ClientTimeout | None" = None,
    ) -> "AsyncIterator[aiohttp.ClientResponse]":
        session = await self.ready()
        from yarl import URL

        sent = dict(headers or {})
        if json is not None:
            sent.setdefault("Content-Type", "application/json")
        async with _told():
            response = await session.request(
                method or ("GET" if json is None else "POST"),
                URL(url, encoded=True),
                data=json,
                headers=sent,
                allow_redirects=self._follows,
                timeout=self._limits() if timeout is None else timeout,
            )
        try:
            yield response
        except BaseException:
            response.close()  # what is left of it is for nobody
            raise
        response.release()

    async def ready(self) -> "aiohttp.ClientSession":
        """What asks. The first time it takes a while, which the limit of a request is not for."""
        if self._session is None:
            await asyncio.to_thread(import_module, "aiohttp")
        if self._session is None:  # still: there may have been others who waited
            self._session = self._new_session()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _new_session(self) -> "aiohttp.ClientSession":
        import aiohttp

        connector = aiohttp.TCPConnector(
            limit=self._requests_max, ssl=self._tls or True, force_close=not self._keeps
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
        )

    def _limits(self) -> "aiohttp.ClientTimeout":
        import aiohttp

        return aiohttp.ClientTimeout(
            total=self._timeout_ns / NS_PER_S or None,
            sock_connect=self._connect_timeout_ns / NS_PER_S or None,
        )

    async def _read(self, response: "aiohttp.ClientResponse") -> bytes:
        chunks, size_bytes = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size_bytes += len(chunk)
            if size_bytes > self._answer_bytes_max:
                raise NoAnswer("the answer is too long")
        return b"".join(chunks)


@asynccontextmanager
async def _told() -> AsyncIterator[None]:
    """Failures of aiohttp in our words."""
    import aiohttp

    try:
        yield
    except TimeoutError:
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        raise NoAnswer(f"{error.host}:{error.port}: {error.certificate_error}") from None
    except aiohttp.ClientConnectorError as error:
        raise NoAnswer(f"{error.host}:{error.port}: {_reason(error.os_error)}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswer(type(error).__name__) from None


def _reason(error: OSError) -> str:
    """In the system's words; asyncio's own name the address once more."""
    number = error.errno
    return os.strerror(number).lower() if number and number > 0 else error.strerror or str(error)


async def _pieces(response: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
    async with _told():
        async for chunk in response.content.iter_any():
            yield chunk


def http_url(host: str, port: int, path: str, **query: str) -> str:
    """ValueError if that is no host."""
    from yarl import URL  # comes with aiohttp

    return str(URL.build(scheme="http", host=host, port=port, path=path, query=query))
