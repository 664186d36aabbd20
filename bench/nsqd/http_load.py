"""What a load process does over HTTP: POST /pub and binary POST /mpub on connections kept open.

The request is built once and sent again and again; every reply is checked. Knows HTTP's bytes and
its load process; must not know servers, targets or how a phase is timed.
"""

from __future__ import annotations

import select
import socket
import struct

from bench.kit import wire
from bench.kit.load_processes import LoadProcess
from bench.kit.servers import ACCESS_TOKEN, BenchFailure

BUFFER_BYTES = 1 << 16
EPOLL_WAIT_S = 0.2
MPUB_BYTES = 1 << 20


def post_pub(process: LoadProcess, port: int, topic: str, *, connections: int) -> None:
    """One POST /pub outstanding on each connection, in one epoll loop."""
    request = pub_request(topic)
    poller, socks = select.epoll(), {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        poller.register(sock, select.EPOLLIN)
        socks[sock.fileno()] = sock
    buf = bytearray(BUFFER_BYTES)
    counts, slot, stop = process.counts, process.slot, process.stop
    process.ready()
    for sock in socks.values():
        sock.sendall(request)
    acked = 0
    while not stop[0]:
        for fd, _ in poller.poll(EPOLL_WAIT_S):
            sock = socks[fd]
            check_reply(buf, sock.recv_into(buf))
            sock.sendall(request)
            acked += 1
        counts[slot] = acked


def post_mpub(process: LoadProcess, port: int, topic: str) -> None:
    """One POST /mpub?binary=true of about 1 MiB outstanding on one connection."""
    count = MPUB_BYTES // (wire.BODY_BYTES + 4)
    message = struct.pack(">I", wire.BODY_BYTES) + bytes(wire.BODY_BYTES)
    body = struct.pack(">I", count) + message * count
    request = _request(f"/mpub?topic={topic}&binary=true", body)
    sock = socket.create_connection(("127.0.0.1", port))
    buf = bytearray(BUFFER_BYTES)
    counts, slot, stop = process.counts, process.slot, process.stop
    process.ready()
    published = 0
    while not stop[0]:
        sock.sendall(request)
        check_reply(buf, sock.recv_into(buf))
        published += count
        counts[slot] = published


def pub_request(topic: str) -> bytes:
    """A POST /pub of one message."""
    return _request(f"/pub?topic={topic}", bytes(wire.BODY_BYTES))


def _request(target: str, body: bytes) -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACCESS_TOKEN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def check_reply(buf: bytearray, size: int) -> None:
    """Replies are a few hundred bytes and come whole; the body is `OK`."""
    if not (buf.startswith(b"HTTP/1.1 200 ") and buf.endswith(b"OK", 0, size)):
        raise BenchFailure(f"unexpected reply: {bytes(buf[:size])!r}")
