"""One HTTP/1.1 GET over asyncio streams: enough to ask an nsqlookupd, with the standard library.

Bounded in time and bytes. Takes answers with a length, in chunks, or up to the end of the
connection; follows no redirects. Whatever else comes is a FetchError.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

LINE_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100


class FetchError(Exception):
    """No usable answer; the text says why."""


async def get(
    url: str,
    *,
    headers: dict[str, str],
    timeout_s: float,
    bytes_max: int,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(url, headers, bytes_max, tls)
    except TimeoutError as error:
        raise FetchError(f"no answer within {timeout_s:g} s") from error
    except asyncio.IncompleteReadError as error:
        raise FetchError("the answer ends early") from error
    except asyncio.LimitOverrunError as error:
        raise FetchError(f"a line is over {LINE_BYTES_MAX} bytes") from error
    except OSError as error:
        raise FetchError(str(error) or type(error).__name__) from error
    except UnicodeError as error:
        raise FetchError("that is no name of a host, or no path") from error


async def _get(
    url: str, headers: dict[str, str], bytes_max: int, tls: ssl.SSLContext | None
) -> tuple[int, bytes]:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if is_tls else 80),
        ssl=(tls or ssl.create_default_context()) if is_tls else None,
        limit=LINE_BYTES_MAX,
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        status = await _read_status(reader)
        return status, await _read_body(reader, await _read_headers(reader), bytes_max)
    finally:
        writer.transport.abort()


async def _read_status(reader: asyncio.StreamReader) -> int:
    words = (await reader.readuntil(b"\n")).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not _is_number(words[1], 10):
        raise FetchError("the answer is not HTTP")
    return int(words[1])


async def _read_headers(reader: asyncio.StreamReader) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        line = (await reader.readuntil(b"\n")).strip()
        if not line:
            return headers
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    raise FetchError(f"more than {HEADERS_MAX} headers")


async def _read_body(
    reader: asyncio.StreamReader, headers: dict[bytes, bytes], bytes_max: int
) -> bytes:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return await _read_chunks(reader, bytes_max)
    length = headers.get(b"content-length")
    if length is None:
        return await _read_to_end(reader, bytes_max)
    if not _is_number(length, 10):
        raise FetchError("its length is no number")
    return await _read_exactly(reader, int(length), bytes_max)


async def _read_chunks(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        size_text = (await reader.readuntil(b"\n")).partition(b";")[0].strip()
        if not _is_number(size_text, 16):
            raise FetchError("the size of a chunk is no number")
        size = int(size_text, 16)
        if size == 0:
            return bytes(body)
        body += await _read_exactly(reader, size, bytes_max - len(body))
        await reader.readuntil(b"\n")


async def _read_to_end(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    body = bytearray()
    while piece := await reader.read(LINE_BYTES_MAX):
        body += piece
        _check_size(len(body), bytes_max)
    return bytes(body)


async def _read_exactly(reader: asyncio.StreamReader, size: int, bytes_max: int) -> bytes:
    _check_size(size, bytes_max)
    return await reader.readexactly(size)


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise FetchError(f"the answer is over the limit by at least {size - bytes_max} bytes")


def _is_number(text: bytes, radix: int) -> bool:
    digits = b"0123456789abcdefABCDEF" if radix == 16 else b"0123456789"
    return 0 < len(text) <= 16 and all(byte in digits for byte in text)
