"""The load on an nsqlookupd: a fleet of nsqds that register, and consumers that ask.

All of it runs in one process and one thread, over epoll and blocking sockets, with as little work
for each command as possible. Knows the bytes of both protocols; must not know what is measured.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from bench.kit.servers import BenchFailure

OK = b"\x00\x00\x00\x02OK"
STALL_S = 20.0
CHUNK_BYTES = 1 << 18

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)\r\n")
_CHUNKED = re.compile(rb"\r\n[Tt]ransfer-[Ee]ncoding: chunked\r\n")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Node:
    """The connection of one simulated nsqd."""

    socket: socket.socket
    commands: list[bytes]
    sent: int = 0
    answered_bytes: int = 0


class Fleet:
    """Simulated nsqds, each with its topics; use as a context manager."""

    def __init__(self, port: int, *, topics_of: Sequence[Sequence[str]]) -> None:
        self._nodes: list[Node] = []
        for number, topics in enumerate(topics_of):
            connected = socket.create_connection(("127.0.0.1", port), STALL_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.sendall(b"  V1" + _identify(number))
            commands = [f"REGISTER {topic} channel\n".encode() for topic in topics]
            self._nodes.append(Node(connected, commands))
        for node in self._nodes:
            answer = b""
            while not answer.endswith(b"}"):
                chunk = node.socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise BenchFailure(f"IDENTIFY was answered with {answer!r}")
                answer += chunk
            node.socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self._nodes:
            node.socket.close()

    def register(self, *, unanswered_max: int) -> float:
        """Registers all topics of all nodes at the same time; returns the seconds it took."""
        poll = select.epoll()
        by_number = {node.socket.fileno(): node for node in self._nodes}
        for number in by_number:
            poll.register(number, select.EPOLLIN)
        began = time.perf_counter()
        for node in self._nodes:
            _send(node, unanswered_max)
        waiting = len(self._nodes)
        while waiting:
            ready = poll.poll(STALL_S)
            if not ready:
                raise BenchFailure(f"registering stalled with {waiting} nodes to go")
            for number, _ in ready:
                node = by_number[number]
                data = node.socket.recv(CHUNK_BYTES)
                if not data or (node.answered_bytes == 0 and not OK.startswith(data[:6])):
                    raise BenchFailure(f"REGISTER was answered with {data[:80]!r}")
                node.answered_bytes += len(data)
                answered = node.answered_bytes // len(OK)
                if node.sent < len(node.commands):
                    _send(node, answered + unanswered_max - node.sent)
                elif answered == len(node.commands):
                    waiting -= 1
        poll.close()
        return time.perf_counter() - began


@dataclass
class Answers:
    """The latencies of a phase of requests."""

    seconds: float
    latencies_us: list[float] = field(repr=False)

    @property
    def rate(self) -> float:
        return len(self.latencies_us) / self.seconds

    def percentile_us(self, share: float) -> float:
        ordered = sorted(self.latencies_us)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def ask(port: int, topics: Sequence[str], *, connections: int, seconds: float) -> Answers:
    """Asks /lookup for one topic after the other, over connections that stay open."""
    requests = [_request(topic) for topic in topics]
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    parts: dict[int, bytearray] = {}
    sent_at: dict[int, float] = {}
    for _ in range(connections):
        connected = socket.create_connection(("127.0.0.1", port), STALL_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[connected.fileno()] = connected
        poll.register(connected.fileno(), select.EPOLLIN)
    asked = 0
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    for number, each in sockets.items():
        parts[number] = bytearray()
        sent_at[number] = clock()
        each.sendall(requests[asked % len(requests)])
        asked += 1
    end = began + seconds
    while (now := clock()) < end:
        ready = poll.poll(STALL_S)
        if not ready:
            raise BenchFailure("/lookup stalled")
        for number, _ in ready:
            answer = parts[number]
            answer += sockets[number].recv(CHUNK_BYTES)
            if not _is_whole(answer):
                continue
            now = clock()
            latencies.append((now - sent_at[number]) * 1e6)
            answer.clear()
            sent_at[number] = now
            sockets[number].sendall(requests[asked % len(requests)])
            asked += 1
    elapsed = clock() - began
    poll.close()
    for each in sockets.values():
        each.close()
    return Answers(elapsed, latencies)


def ask_anew(port: int, topics: Sequence[str], *, seconds: float) -> Answers:
    """Does the same with a new connection for each request, one after the other."""
    requests = [_request(topic) for topic in topics]
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    while (start := clock()) < began + seconds:
        with socket.create_connection(("127.0.0.1", port), STALL_S) as connected:
            connected.sendall(requests[len(latencies) % len(requests)])
            answer = bytearray()
            while not _is_whole(answer):
                answer += connected.recv(CHUNK_BYTES)
        latencies.append((clock() - start) * 1e6)
    return Answers(clock() - began, latencies)


def _identify(number: int) -> bytes:
    body = json.dumps(
        {
            "broadcast_address": f"node-{number}.example.com",
            "hostname": f"node-{number}",
            "http_port": 4151,
            "tcp_port": 4150,
            "version": "1.3.0",
        }
    ).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def _send(node: Node, count: int) -> None:
    if count > 0:
        node.socket.sendall(b"".join(node.commands[node.sent : node.sent + count]))
        node.sent = min(node.sent + count, len(node.commands))


def _request(topic: str) -> bytes:
    """The request that go-nsq sends."""
    return (
        f"GET /lookup?topic={topic} HTTP/1.1\r\n"
        "Host: 127.0.0.1:4161\r\n"
        "User-Agent: Go-http-client/1.1\r\n"
        "Accept: application/vnd.nsq; version=1.0\r\n"
        "Accept-Encoding: gzip\r\n\r\n"
    ).encode()


def _is_whole(answer: bytearray) -> bool:
    head = answer.find(b"\r\n\r\n")
    if head < 0:
        return False
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise BenchFailure(f"/lookup was answered with {bytes(answer[:80])!r}")
    length = _LENGTH.search(answer, 0, head + 2)
    if length:
        return len(answer) >= head + 4 + int(length[1])
    if not _CHUNKED.search(answer, 0, head + 2):
        raise BenchFailure("an answer of unknown length")
    return answer.endswith(_LAST_CHUNK)
