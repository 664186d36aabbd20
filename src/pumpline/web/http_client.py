"""Asking others over HTTP: with a limit on every wait, and on the length of what they answer.

Importing aiohttp takes as long as all the rest of a start, and many daemons ask nobody: `ready`
does it, in a thread. Of what may go wrong a caller sees TimeoutError and `NoAnswer`. Its text says
why there is no connection; of other failures it names the kind alone, as aiohttp's words may hold
the URL, and that a secret.
"""

import asyncio
import os
from collections.abc import AsyncIterator
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
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        """A timeout of 0 is none. Of more than `requests_max` requests at a time, some wait.
        `follows`: goes where it is redirected to."""
        self._connect_timeout_ns = connect_timeout_ns
        self._timeout_ns = timeout_ns
        self._requests_max = requests_max
        self._answer_bytes_max = answer_bytes_max
        self._follows = follows
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, url: str, json: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer to a GET, or to a POST of this JSON."""
        session = await self.ready()
        from yarl import URL

        async with (
            _told(),
            session.request(
                "GET" if json is None else "POST",
                URL(url, encoded=True),
                data=json,
                headers={} if json is None else {"Content-Type": "application/json"},
                allow_redirects=self._follows,
                timeout=self._limits(),
            ) as response,
        ):
            return response.status, await self._read(response)

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
            limit=self._requests_max, ssl=self._tls or True, force_close=True
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


def http_url(host: str, port: int, path: str, **query: str) -> str:
    """ValueError if that is no host."""
    from yarl import URL  # comes with aiohttp

    return str(URL.build(scheme="http", host=host, port=port, path=path, query=query))
