"""Asking others over HTTP: with a limit on every wait, and on the length of what they answer."""

import ssl

import aiohttp

from pumpline import __version__
from pumpline.core.text.durations import NS_PER_S

_HEADERS = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"pumpline/{__version__}"}


class TooLong(Exception):
    """The answer is over the limit."""


def new_client(
    *,
    connect_timeout_ns: int,
    timeout_ns: int,
    requests_max: int,
    tls: ssl.SSLContext | None = None,
) -> aiohttp.ClientSession:
    """A timeout of 0 is none; of more than `requests_max` requests at a time, some wait."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=requests_max, ssl=tls or True, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(
            total=timeout_ns / NS_PER_S or None,
            sock_connect=connect_timeout_ns / NS_PER_S or None,
        ),
    )


async def read_answer(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The body, or TooLong."""
    answer = bytearray()
    async for chunk in response.content.iter_any():
        answer += chunk
        if len(answer) > bytes_max:
            raise TooLong("the answer is too long")
    return bytes(answer)
