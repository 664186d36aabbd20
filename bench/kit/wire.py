"""The bytes a load client sends and the frames it gets, over blocking sockets.

Knows the part of NSQ's V2 protocol that load needs. Must not know processes, counts or workloads.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Mapping, Sequence

from bench.kit.servers import BenchFailure
from pumpline.core.messages.kernels import fin_commands

BODY_BYTES = 200
# A blocked recv wakes this often to see whether it should stop. This is SO_RCVTIMEO, because
# settimeout would cost a poll() before every recv.
WAKE_US = 200_000
CONNECT_TIMEOUT_S = 5.0

MAGIC = b"  V2"
NOP = b"NOP\n"
OK_FRAME = b"\0\0\0\x06\0\0\0\0OK"
HEARTBEAT = b"_heartbeat_"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
FRAME_HEAD = struct.Struct(">II")
# A message's body begins after size, type, timestamp, attempts and id.
BODY_OFFSET = 34

# go-nsq sends this by default.
IDENTITY = {
    "client_id": "bench",
    "hostname": "bench",
    "user_agent": "bench/1",
    "feature_negotiation": True,
    "heartbeat_interval": 30_000,
    "output_buffer_size": 16_384,
    "output_buffer_timeout": 250,
}

# The replies to n publishes, by length: a look-up and a comparison are faster than parsing.
_OKS = {count * len(OK_FRAME): OK_FRAME * count for count in range(1, 257)}


def pub(topic: str, body: bytes = bytes(BODY_BYTES)) -> bytes:
    """A PUB command."""
    return b"PUB %s\n%s%s" % (topic.encode(), struct.pack(">I", len(body)), body)


def dpub(topic: str, delay_ms: int, body: bytes = bytes(BODY_BYTES)) -> bytes:
    """A DPUB command."""
    return b"DPUB %s %d\n%s%s" % (topic.encode(), delay_ms, struct.pack(">I", len(body)), body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """An MPUB command of these messages."""
    body = b"".join(struct.pack(">I", len(each)) + each for each in bodies)
    head = struct.pack(">II", 4 + len(body), len(bodies))
    return b"MPUB %s\n%s%s" % (topic.encode(), head, body)


def documents(count: int) -> list[bytes]:
    """JSON bodies, no two alike; the same list on every call."""
    chance = random.Random(count)
    made = []
    for number in range(count):
        document = {
            "id": f"{chance.getrandbits(64):016x}",
            "time": f"2026-11-16T{chance.randrange(24):02}:{chance.randrange(60):02}:00Z",
            "event": chance.choice(("page_view", "add_to_cart", "checkout", "search")),
            "user": {"id": chance.randrange(10**6), "country": chance.choice(("de", "fr", "us"))},
            "price": round(chance.random() * 100, 2),
            "number": number,
            "note": "",
        }
        missing = BODY_BYTES - len(json.dumps(document))
        document["note"] = chance.randbytes(missing).hex()[:missing]
        made.append(json.dumps(document).encode())
    return made


def connect(port: int, identity: Mapping[str, object] = IDENTITY) -> socket.socket:
    """A new connection, after IDENTIFY."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = json.dumps(identity).encode()
    sock.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
    read_response(sock)
    set_wake_up(sock)
    return sock


def set_wake_up(sock: socket.socket) -> None:
    """Makes the socket block, but wake up every WAKE_US so that its reader can stop."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, WAKE_US))


def subscribe(port: int, topic: str, channel: str) -> socket.socket:
    """A new connection, after SUB and before RDY."""
    sock = connect(port)
    sock.settimeout(CONNECT_TIMEOUT_S)
    sock.sendall(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
    if (reply := read_response(sock)) != b"OK":
        raise BenchFailure(f"SUB answered {reply!r}")
    sock.settimeout(None)
    return sock


def read_response(sock: socket.socket) -> bytes:
    """Reads exactly one frame; raises if it is not a response."""
    size, kind = FRAME_HEAD.unpack(_read(sock, FRAME_HEAD.size))
    data = _read(sock, size - 4)
    if kind != RESPONSE:
        raise BenchFailure(f"expected a response, got type {kind}: {data[:100]!r}")
    return data


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise BenchFailure("server closed the connection")
        data += piece
    return data


def take_oks(buf: bytearray, end: int) -> tuple[int, int, int]:
    """`(pos, oks, heartbeats)` of the whole frames in `buf[:end]`; raises at an error frame."""
    known = _OKS.get(end)
    if known is not None and buf.startswith(known):
        return end, end // len(OK_FRAME), 0
    pos = oks = heartbeats = 0
    while end - pos >= FRAME_HEAD.size:
        size, kind = FRAME_HEAD.unpack_from(buf, pos)
        if end - pos < 4 + size:
            break
        data = bytes(buf[pos + FRAME_HEAD.size : pos + 4 + size])
        if kind == RESPONSE and data == b"OK":
            oks += 1
        elif kind == RESPONSE and data == HEARTBEAT:
            heartbeats += 1
        else:
            raise BenchFailure(f"publish answered with type {kind}: {data[:100]!r}")
        pos += 4 + size
    return pos, oks, heartbeats


def answer(buf: bytearray, end: int, out: bytearray) -> tuple[int, int]:
    """Appends to `out` the answers to the whole frames in `buf[:end]`: FIN to a message, NOP to a
    heartbeat. Returns `(pos, messages)`; raises at an error frame."""
    pos, messages = fin_commands(buf, 0, end, out)
    while end - pos >= FRAME_HEAD.size:
        size, kind = FRAME_HEAD.unpack_from(buf, pos)
        if kind == MESSAGE or end - pos < 4 + size:
            break
        data = bytes(buf[pos + FRAME_HEAD.size : pos + 4 + size])
        if kind != RESPONSE or data != HEARTBEAT:
            raise BenchFailure(f"consumer got type {kind}: {data[:100]!r}")
        out += NOP
        pos, more = fin_commands(buf, pos + 4 + size, end, out)
        messages += more
    return pos, messages
