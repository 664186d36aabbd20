"""HTTP requests, right and wrong: lines, headers, bodies and chunks that do not fit together.

Knows nsqd's paths and the grammar of HTTP/1.1. Opens nothing.
"""

import json
import random
from collections.abc import Callable, Sequence

from tests.kit.fuzz.grammar import MSG_BYTES_MAX, body, digits, sized
from tests.kit.fuzz.mutation import NUMBERS, mutated

# Paths that publish, manage, show and set, with methods that are right for them.
ROUTES = (
    (b"POST", b"/pub"),
    (b"POST", b"/mpub"),
    (b"GET", b"/ping"),
    (b"GET", b"/info"),
    (b"GET", b"/stats"),
    (b"GET", b"/metrics"),
    (b"POST", b"/topic/create"),
    (b"POST", b"/topic/delete"),
    (b"POST", b"/topic/empty"),
    (b"POST", b"/topic/pause"),
    (b"POST", b"/topic/unpause"),
    (b"POST", b"/channel/create"),
    (b"POST", b"/channel/delete"),
    (b"POST", b"/channel/empty"),
    (b"POST", b"/channel/pause"),
    (b"POST", b"/channel/unpause"),
    (b"GET", b"/ready"),
    (b"GET", b"/metrics"),
    (b"GET", b"/topic/settings"),
    (b"POST", b"/topic/settings"),
    (b"POST", b"/topic/settings"),
    (b"GET", b"/log/offsets"),
    (b"GET", b"/log/raw"),
    (b"GET", b"/log/files"),
    (b"POST", b"/channel/seek"),
    (b"POST", b"/channel/disconnect"),
    (b"POST", b"/hold/create"),
    (b"POST", b"/hold/commit"),
    (b"POST", b"/hold/delete"),
    (b"GET", b"/hold/list"),
    (b"GET", b"/config/log_level"),
    (b"GET", b"/config/nsqlookupd_tcp_addresses"),
    (b"PUT", b"/config/log_level"),
    (b"PUT", b"/config/nsqlookupd_tcp_addresses"),
    (b"GET", b"/debug/pprof/"),
    (b"GET", b"/debug/pprof/cmdline"),
    (b"POST", b"/debug/freememory"),
)
ODD_PATHS = (
    b"",
    b"*",
    b"//",
    b"/..",
    b"/./ping",
    b"/PING",
    b"/ping/",
    b"/%70ing",
    b"/%zz",
    b"/%",
    b"/\xff",
    b"/config/",
    b"/config/%2e%2e",
    b"http://127.0.0.1/ping",
    b"http://[/ping",
    b"?topic=fuzz-0",
    b"/ping#fragment",
    b"/" + b"x" * 9000,
)
METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT")
QUERY_NAMES = (
    *(b"topic", b"channel", b"channel", b"binary", b"defer", b"format", b"rate", b"hold"),
    *(b"offset", b"from", b"to", b"time", b"log", b"bytes_max"),
)
ODD_METHODS = (b"", b"get", b"P\0ST", b"X" * 100, b"\xff")
VERSIONS = (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.9", b"HTTP/", b"", b"http/1.1", b"HTTP/1.1 more")
NAMES = (b"fuzz-0", b"fuzz-1", b"fuzz-2%23ephemeral", b"c0", b"%ff", b"%zz", b"", b"a+b", b"%00")
# Of PUT /config: none of these leads the daemon anywhere but here, or hides what it logs.
VALUES = (b"info", b"debug", b"nonsense", b"[]", b"null", b"[1]", b"{", b"[" * 5000, b"\xff", b"")

# Of POST /topic/settings: values that are right for one name or another, and some for none.
SETTINGS = (
    *("retention_time", "retention_bytes", "message_ttl", "max_attempts", "dead_letter_topic"),
    *("dead_letter_form", "max_depth", "max_bytes", "when_full", "nonsense"),
)
SETTING_VALUES = (
    *(None, 0, 1, 7, 100_000, -1, 1 << 64, 1.5, True, "1ms", "1h", "-1s", "", "body", "json"),
    *("reject", "drop-oldest", "fuzz-0", "fuzz-1", "x" * 65, "fuzz-2#ephemeral", [], {}),
)

Header = tuple[bytes, bytes]


def requests(rng: random.Random) -> bytes:
    """What one client sends: one request or a few, one after another."""
    whole = b"".join(request(rng) for _ in range(rng.choices((1, 2, 3), (6, 2, 1))[0]))
    if rng.random() < 0.3:
        whole = mutated(rng, whole)
    if rng.random() < 0.05:
        whole = rng.randbytes(rng.choice((1, 10, 1000)))
    return whole


def request(rng: random.Random) -> bytes:
    method, path = rng.choice(ROUTES)
    content = content_for(rng, path)
    if rng.random() < 0.1:
        method = rng.choice(METHODS + ODD_METHODS)
    if rng.random() < 0.1:
        path = rng.choice(ODD_PATHS)
    target = path + query(rng)
    version = rng.choice(VERSIONS) if rng.random() < 0.05 else b"HTTP/1.1"
    headers: list[Header] = [(b"Host", b"localhost")]
    if method in (b"POST", b"PUT") or rng.random() < 0.2:
        framing, content = framed(rng, content)
        headers += framing
    else:
        content = b""
    if rng.random() < 0.1:
        headers += odd_headers(rng)
    newline = b"\n" if rng.random() < 0.02 else b"\r\n"
    lines = [b" ".join((method, target, version)), *(b": ".join(each) for each in headers)]
    return newline.join([*lines, b"", content])


def content_for(rng: random.Random, path: bytes) -> bytes:
    if path.startswith(b"/config"):
        return rng.choice(VALUES)
    if path == b"/topic/settings":
        names = rng.sample(SETTINGS, rng.randint(0, 4))
        raw = json.dumps({name: rng.choice(SETTING_VALUES) for name in names}).encode()
        return raw if rng.random() < 0.8 else mutated(rng, raw)
    if path == b"/mpub" and rng.random() < 0.5:
        bodies = [body(rng) for _ in range(rng.randint(0, 5))]
        count = len(bodies) if rng.random() < 0.8 else rng.choice(NUMBERS) % (1 << 32)
        return count.to_bytes(4) + b"".join(map(sized, bodies))
    return b"\n".join(body(rng) for _ in range(rng.randint(0, 4)))


def query(rng: random.Random) -> bytes:
    pairs = [b"topic=fuzz-%d" % rng.randrange(3)] if rng.random() < 0.8 else []
    for name in QUERY_NAMES:
        if rng.random() < 0.2:
            good = rng.choice((b"c0", b"fuzz-0", b"true", b"json", b"%d" % rng.randint(0, 99)))
            value = good if rng.random() < 0.7 else rng.choice((*NAMES, digits(rng)))
            pairs.append(name + b"=" + value)
    if rng.random() < 0.05:
        pairs.append(rng.choice((b"%", b"a;b", b"=", b"&&", b"%gg=1", b"\xff=\xff", b"a" * 9000)))
    rng.shuffle(pairs)
    return b"?" + b"&".join(pairs) if pairs else b""


def framed(rng: random.Random, content: bytes) -> tuple[list[Header], bytes]:
    """Headers that say how long the content is, and the content as it is sent."""
    kinds: Sequence[tuple[int, Callable[[], tuple[list[Header], bytes]]]] = (
        (40, lambda: ([_length(len(content))], content)),
        (20, lambda: ([_CHUNKED], chunked(rng, content))),
        (1, lambda: ([_length(len(content) + rng.choice((-1, 1, 100)))], content)),
        (1, lambda: ([(b"Content-Length", rng.choice(_LENGTHS))], content)),
        (1, lambda: ([_length(1), _length(2)], content)),
        (1, lambda: ([_CHUNKED, _length(len(content))], chunked(rng, content))),
        (1, lambda: ([(b"Transfer-Encoding", rng.choice(_ENCODINGS))], content)),
        (1, lambda: ([], content)),
    )
    weights = [weight for weight, _ in kinds]
    return rng.choices(kinds, weights)[0][1]()


def chunked(rng: random.Random, content: bytes) -> bytes:
    parts = []
    at = 0
    while at < len(content):
        size = rng.choice((1, 10, 1000, MSG_BYTES_MAX))
        chunk = content[at : at + size]
        parts += [b"%x" % len(chunk), rng.choices(_EXTENSIONS, (20, 1, 1))[0], b"\r\n", chunk]
        parts.append(b"\r\n")
        at += size
    parts.append(b"0\r\n\r\n")
    if rng.random() < 0.2:
        parts[rng.randrange(len(parts))] = rng.choice(_CHUNK_SIZES)
    return b"".join(parts)


def odd_headers(rng: random.Random) -> list[Header]:
    kinds: Sequence[list[Header]] = (
        [(b"Expect", b"100-continue")],
        [(b"Expect", b"miracles")],
        [(b"Connection", rng.choice((b"close", b"keep-alive", b"upgrade", b"\xff")))],
        [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade")],
        [(b"X-Long", b"x" * rng.choice((8000, 8190, 9000, 70_000)))],
        [(b"X-%d" % n, b"v") for n in range(rng.choice((100, 129, 2000)))],
        [(b"X-Bad\0", b"v")],
        [(b" folded", b"v")],
        [(b"", b"")],
        [(b"X-Bytes", bytes(range(128, 256)))],
        [(b"Content-Encoding", rng.choice((b"gzip", b"deflate", b"br", b"nonsense")))],
        [(b"Host", b"twice")],
        [(b"Authorization", rng.choice(_CREDENTIALS))],
    )
    return rng.choice(kinds)


def _length(size_bytes: int) -> Header:
    return (b"Content-Length", b"%d" % size_bytes)


_CREDENTIALS = (b"Bearer", b"Bearer ", b"Bearer x", b"Basic eDp5", b"Bearer \xff", b"x" * 8000)
_CHUNKED: Header = (b"Transfer-Encoding", b"chunked")
_LENGTHS = (b"-1", b"", b"x", b"1e3", b"+5", b"0x10", b"99999999999999999999", b"9" * 5000, b"5, 5")
_ENCODINGS = (b"identity", b"gzip", b"gzip, chunked", b"chunked, chunked", b"chunkedx", b"")
_EXTENSIONS = (b"", b";a=b", b";" + b"x" * 5000)
_CHUNK_SIZES = (
    b"-1\r\n",
    b"ffffffffffffffffff\r\n",
    b"g\r\n",
    b"\r\n",
    b"",
    b"7fffffff\r\n",
    b" 5\r\n",
)
