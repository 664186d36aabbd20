"""Streams of V2 commands: valid ones, valid ones in an order nobody would choose, and broken ones.

Knows the protocol's grammar and the limits the daemon under test was started with. Opens nothing.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence

from tests.kit.fuzz.mutation import NUMBERS, mutated, spliced

MAGIC = b"  V2"
MSG_BYTES_MAX = 20_000
BODY_BYTES_MAX = 60_000
RDY_MAX = 2500
# Compression would hide the frames; what asks for it is still sent.
LIMIT_FLAGS = (
    f"--max-msg-size={MSG_BYTES_MAX}",
    f"--max-body-size={BODY_BYTES_MAX}",
    f"--max-rdy-count={RDY_MAX}",
    "--deflate=false",
    "--snappy=false",
)

TOPICS = (b"fuzz-0", b"fuzz-1", b"fuzz-2", b"fuzz-3#ephemeral", b"fuzz-4#ephemeral")
CHANNELS = (b"c0", b"c1", b"c2#ephemeral")
BAD_NAMES = (b"", b"a/b", b"x" * 65, b"\xff\xfe", b"#ephemeral", b"a#other", b"a\0b", b"\xc3\xa9")
ODD_NAMES = (b".", b"..", b"x" * 64, b"-", b"fuzz-9")
DIGITS = (b"", b"0", b"1", b"007", b"-1", b"+1", b"1.0", b"2500", b"2501", b"18446744073709551616")
IDS = (b"0" * 16, b"f" * 16, b"-" * 16, b"0123456789abcdeF", b"\xff" * 16, b"short", b"+" * 16)

TOKENS = (b"a", b"b", b"._:-", b"x" * 64, b"x" * 65, b"", b"a/b", b"\xff", b"a\0", b"a b")

Command = Callable[[random.Random], bytes]


def stream(rng: random.Random) -> bytes:
    """Everything one client sends."""
    parts = commands(rng)
    kind = rng.randrange(10)
    if kind < 3:
        return MAGIC + b"".join(parts)
    if kind < 6:
        return MAGIC + mutated(rng, b"".join(parts))
    if kind == 6:
        at = rng.randrange(len(parts))
        parts[at] = mutated(rng, parts[at])
        return MAGIC + b"".join(parts)
    if kind == 7:
        return MAGIC + spliced(rng, b"".join(parts), b"".join(commands(rng)))
    if kind == 8:
        return mutated(rng, MAGIC + b"".join(parts))
    return rng.choice((b"", MAGIC)) + rng.randbytes(rng.choice((1, 3, 4, 100, 5000)))


def commands(rng: random.Random) -> list[bytes]:
    """One to twelve valid commands, mostly in an order that works."""
    verbs: Sequence[Command]
    kind = rng.choices(("producer", "consumer", "both", "neither"), (3, 4, 2, 1))[0]
    if kind == "producer":
        verbs = (pub, pub, mpub, mpub, dpub, nop)
        begin = [identify(rng)] if rng.random() < 0.5 else []
    elif kind == "consumer":
        verbs = (rdy, rdy, fin, req, touch, nop, pub)
        begin = [sub(rng), rdy(rng)]
        if rng.random() < 0.5:
            begin.insert(0, identify(rng))
    elif kind == "both":
        verbs = (pub, pub, mpub, rdy, rdy, fin, req, touch, cls, nop)
        begin = [pub(rng), sub(rng)]
    else:
        verbs = (identify, auth, sub, rdy, fin, req, touch, cls, nop, pub, mpub, dpub, odd_line)
        begin = []
    parts = begin + [rng.choice(verbs)(rng) for _ in range(rng.randint(1, 12))]
    if rng.random() < 0.3:  # runs of the same take a shorter way through the broker
        at = rng.randrange(len(parts))
        parts[at:at] = [parts[at]] * rng.randint(1, 30)
    return parts


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def ending(rng: random.Random) -> bytes:
    return rng.choices((b"\n", b"\r\n", b" x\n"), (8, 1, 1))[0]


def topic(rng: random.Random) -> bytes:
    return _name(rng, TOPICS)


def token(rng: random.Random) -> bytes:
    """A publish token, now and then; a space before it."""
    return b" " + rng.choice(TOKENS) if rng.random() < 0.1 else b""


def digits(rng: random.Random) -> bytes:
    kinds = (
        lambda: b"%d" % rng.randint(0, 100),
        lambda: rng.choice(DIGITS),
        lambda: b"9" * rng.choice((19, 20, 100, 4300, 4301, 9000)),
    )
    return rng.choices(kinds, (24, 3, 1))[0]()


def body(rng: random.Random) -> bytes:
    sizes = (1, 2, 10, 100, 1000, MSG_BYTES_MAX, MSG_BYTES_MAX + 1)
    size = rng.choices(sizes, (40, 40, 80, 40, 20, 4, 1))[0]
    return rng.choice((rng.randbytes(size), b"PUB fuzz-0\n"[:size].ljust(size, b"\n")))


def identify(rng: random.Random) -> bytes:
    fields: dict[str, object] = {}
    for name, values in _FIELDS.items():
        if rng.random() < 0.3:
            fields[name] = values[0] if rng.random() < 0.8 else rng.choice(values)
    raw = json.dumps(fields).encode()
    if rng.random() < 0.1:
        raw = rng.choice((b"null", b"[]", b"{", b"[" * 5000, b'{"a":1e999}', b'{"\xff":"\xff"}'))
    return b"IDENTIFY" + ending(rng) + sized(raw)


def auth(rng: random.Random) -> bytes:
    return b"AUTH\n" + sized(rng.randbytes(rng.randint(1, 20)))


def sub(rng: random.Random) -> bytes:
    return b"SUB " + topic(rng) + b" " + _name(rng, CHANNELS) + ending(rng)


def rdy(rng: random.Random) -> bytes:
    return b"RDY " + rng.choice((digits(rng), b"%d" % rng.randint(1, 9))) + ending(rng)


def fin(rng: random.Random) -> bytes:
    return b"FIN " + _id(rng) + ending(rng)


def req(rng: random.Random) -> bytes:
    return b"REQ " + _id(rng) + b" " + digits(rng) + ending(rng)


def touch(rng: random.Random) -> bytes:
    return b"TOUCH " + _id(rng) + ending(rng)


def cls(rng: random.Random) -> bytes:
    return b"CLS" + ending(rng)


def nop(rng: random.Random) -> bytes:
    return b"NOP" + ending(rng)


def pub(rng: random.Random) -> bytes:
    return b"PUB " + topic(rng) + token(rng) + ending(rng) + sized(body(rng))


def dpub(rng: random.Random) -> bytes:
    target = topic(rng) + b" " + digits(rng) + token(rng)
    return b"DPUB " + target + ending(rng) + sized(body(rng))


def mpub(rng: random.Random) -> bytes:
    bodies = [body(rng) for _ in range(rng.randint(1, 8))]
    count = len(bodies) if rng.random() < 0.9 else rng.choice(NUMBERS) % (1 << 32)
    whole = count.to_bytes(4) + b"".join(map(sized, bodies))
    size = len(whole) if rng.random() < 0.9 else rng.choice(NUMBERS) % (1 << 32)
    return b"MPUB " + topic(rng) + token(rng) + ending(rng) + size.to_bytes(4) + whole


def odd_line(rng: random.Random) -> bytes:
    kinds = (
        b"\n",
        b"\r\n",
        b" \n",
        b"RDY\n",
        b"FIN\n",
        b"SUB fuzz-0\n",
        b"pub fuzz-0\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"NOP".ljust(16_383, b" ") + b"\n",
        b"NOP".ljust(16_384, b" ") + b"\n",
        b"x" * 20_000,
        MAGIC,
        "ÜNKNOWN ünknown\n".encode(),
    )
    return rng.choice(kinds)


def _name(rng: random.Random, names: Sequence[bytes]) -> bytes:
    kind = rng.random()
    if kind < 0.9:
        return rng.choice(names)
    return rng.choice(BAD_NAMES if kind < 0.96 else ODD_NAMES)


def _id(rng: random.Random) -> bytes:
    return rng.choice(IDS) if rng.random() < 0.3 else b"%016x" % rng.getrandbits(64)


_FIELDS: dict[str, Sequence[object]] = {
    "client_id": ("a", "", "x" * 1000, "\ud83d\ude00", 7, None),
    "hostname": ("h", "\u0000", '"quoted" & <b>', []),
    "user_agent": ("fuzz/1", "\n\r", {}),
    "Client_ID": ("b",),
    "feature_negotiation": (True, True, False, 1),
    "heartbeat_interval": (0, -1, 1000, 60_000, 60_001, 999, -2, 1 << 63, 1.5, "1"),
    "output_buffer_size": (0, -1, 64, 63, 65_536, 65_537),
    "output_buffer_timeout": (0, -1, 25, 24, 30_000, 30_001),
    "sample_rate": (0, 1, 50, 99, 100, -1, 1 << 31),
    "msg_timeout": (0, 1000, 999, 900_000, 900_001, -1),
    "tls_v1": (True, False),
    "deflate": (True, False),
    "deflate_level": (0, 6, 99),
    "snappy": (True, False),
    "publish_tokens": (True, False, 1, "yes"),
    "topology_region": ("r",),
    "topology_zone": ("z",),
    "unknown": ([1, {"a": None}],),
}
