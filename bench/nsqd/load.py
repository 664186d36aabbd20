"""What a load process does: publish, drain, or both against the clock.

Whatever can be built before the measured phase is built before it. A publisher sends the same
bytes again and again and counts OK frames. A consumer answers each chunk it receives with one write
of FIN commands, made by a compiled kernel. Each function runs in a process of its own, counts
messages in its slot, and raises at the first error frame. Knows the wire and its load process; must
not know servers, targets or how a phase is timed.
"""

from __future__ import annotations

import http.client
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.kit import wire
from bench.kit.load_processes import LoadProcess
from bench.kit.servers import BenchFailure
from bench.nsqd.upgrades import Upgraded

BUFFER_BYTES = 1 << 18
MPUB_MESSAGES = 200
EPOLL_WAIT_S = 0.2
THROTTLE_SLEEP_S = 0.0005
STAMP = struct.Struct(">Q")


@dataclass(frozen=True)
class Topics:
    """Topics `name-0`, `name-1`, ..., each with one channel. A publisher sends `messages_each`
    messages to one and goes on with the next, so that a broker with a bounded memory queue (Go
    nsqd's --mem-queue-size) stays within it, however long the phase is."""

    name: str
    channel: str
    http_port: int
    messages_each: int

    def open(self, index: int) -> str:
        """Creates the topic and its channel if they do not exist; returns the topic's name."""
        topic = f"{self.name}-{index}"
        with_http = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)
        for path in (
            f"/topic/create?topic={topic}",
            f"/channel/create?topic={topic}&channel={self.channel}",
        ):
            with_http.request("POST", path)
            response = with_http.getresponse()
            response.read()
            if response.status != http.client.OK:
                raise BenchFailure(f"POST {path}: {response.status}")
        with_http.close()
        return topic


@dataclass(frozen=True)
class Lead:
    """How far publishers may run ahead of the slowest group of consumers, in messages."""

    publishers: Sequence[int]
    groups: Sequence[Sequence[int]]
    messages_max: int

    def wait(self, process: LoadProcess) -> None:
        """Returns when this publisher may go on, or should stop."""
        counts = process.counts
        while not process.stop[0]:
            published = sum(counts[slot] for slot in self.publishers)
            slowest = min(sum(counts[slot] for slot in group) for group in self.groups)
            if published - slowest <= self.messages_max:
                return
            time.sleep(THROTTLE_SLEEP_S)


def publish(
    process: LoadProcess,
    port: int,
    topics: str | Topics,
    *,
    messages_per_command: int,
    window: int,
    messages_max: int | None = None,
    lead: Lead | None = None,
    upgrade: str = "",
    documents: bool = False,
    body_bytes: int = wire.BODY_BYTES,
    delay_ms: int | None = None,
) -> None:
    """One connection with `window` commands in flight: MPUB, or PUB when a command is one message,
    or DPUB when it has a delay.

    Each OK lets the next command go. Counts acknowledged messages.
    """
    row = topics if isinstance(topics, Topics) else None
    topic = topics if isinstance(topics, str) else topics.open(0)
    sock = Upgraded(port, upgrade) if upgrade else wire.connect(port)
    send, pack = (
        (sock.send_packed, sock.pack) if isinstance(sock, Upgraded) else (sock.sendall, bytes)
    )
    if documents:
        bodies = wire.documents(messages_per_command)
    else:
        bodies = [bytes(body_bytes)] * messages_per_command
    pieces, command_bytes = _commands(topic, bodies, window, pack, delay_ms)
    commands_max = -1 if messages_max is None else messages_max // messages_per_command
    rotate_every = row.messages_each // messages_per_command if row else 0
    rotate_at, topic_index = rotate_every, 0
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    counts, slot, stop = process.counts, process.slot, process.stop
    process.ready()
    sent = window if commands_max < 0 else min(window, commands_max)
    send(pieces[: sent * command_bytes])
    acked = end = 0
    while not stop[0]:
        end += receive_into(sock, view[end:])
        pos, oks, heartbeats = wire.take_oks(buf, end)
        end = keep_rest(buf, pos, end)
        if heartbeats:
            sock.sendall(wire.NOP * heartbeats)
        if not oks:
            continue
        acked += oks
        check_oks(acked, sent)
        counts[slot] = acked * messages_per_command
        if acked == commands_max:
            break
        if commands_max >= 0:
            oks = min(oks, commands_max - sent)
        if lead:
            lead.wait(process)
        if row and sent >= rotate_at:
            topic_index += 1
            rotate_at += rotate_every
            topic = row.open(topic_index)
            pieces, command_bytes = _commands(topic, bodies, window, pack, delay_ms)
        send(pieces[: oks * command_bytes])
        sent += oks


def _commands(
    topic: str,
    bodies: Sequence[bytes],
    window: int,
    pack: Callable[[bytes], bytes],
    delay_ms: int | None,
) -> tuple[memoryview, int]:
    if delay_ms is not None:
        one = pack(wire.dpub(topic, delay_ms, bodies[0]))
    else:
        one = pack(wire.pub(topic, bodies[0]) if len(bodies) == 1 else wire.mpub(topic, bodies))
    return memoryview(one * window), len(one)


def publish_in_turn(process: LoadProcess, port: int, topic: str, *, connections: int) -> None:
    """Many connections, each with one PUB outstanding, in one epoll loop."""
    command = wire.pub(topic)
    socks = [wire.connect(port) for _ in range(connections)]
    poller, by_fd = _register(socks)
    buf = bytearray(BUFFER_BYTES)
    counts, slot, stop = process.counts, process.slot, process.stop
    rests: dict[int, bytes] = {}
    process.ready()
    for sock in socks:
        sock.send(command)
    acked = 0
    while not stop[0]:
        for fd, _ in poller.poll(EPOLL_WAIT_S):
            receive, send = by_fd[fd]
            end = _receive_after_rest(receive, buf, rests.pop(fd, b""))
            pos, oks, heartbeats = wire.take_oks(buf, end)
            if pos != end:
                rests[fd] = bytes(buf[pos:end])
            if heartbeats:
                _send_whole(send, wire.NOP * heartbeats)
            if oks:
                check_oks(oks, 1)
                _send_whole(send, command)
                acked += oks
        counts[slot] = acked


def drain(
    process: LoadProcess,
    port: int,
    topic: str,
    channel: str,
    *,
    rdy: int,
    upgrade: str = "",
    buffer_bytes: int = BUFFER_BYTES,
) -> None:
    """One consumer: one write of FINs for each chunk received. Counts messages."""
    buf = bytearray(buffer_bytes)
    view = memoryview(buf)
    out = bytearray()
    counts, slot, stop = process.counts, process.slot, process.stop
    answer = wire.answer
    sock = _subscribe(port, topic, channel, upgrade)
    process.ready()
    sock.sendall(b"RDY %d\n" % rdy)
    received = end = 0
    while not stop[0]:
        end += receive_into(sock, view[end:])
        pos, messages = answer(buf, end, out)
        end = keep_rest(buf, pos, end)
        if out:
            sock.sendall(out)
            out.clear()
            received += messages
            counts[slot] = received


def _subscribe(port: int, topic: str, channel: str, upgrade: str) -> socket.socket | Upgraded:
    if not upgrade:
        return wire.subscribe(port, topic, channel)
    upgraded = Upgraded(port, upgrade)
    upgraded.subscribe(topic, channel)
    return upgraded


def drain_many(
    process: LoadProcess, port: int, topics: Sequence[str], channel: str, *, rdy: int
) -> None:
    """A consumer of each of these topics, which may be the same, in one epoll loop."""
    socks = [wire.subscribe(port, topic, channel) for topic in topics]
    poller, by_fd = _register(socks)
    buf = bytearray(BUFFER_BYTES)
    out = bytearray()
    counts, slot, stop = process.counts, process.slot, process.stop
    answer = wire.answer
    rests: dict[int, bytes] = {}
    process.ready()
    for sock in socks:
        sock.send(b"RDY %d\n" % rdy)
    received = 0
    while not stop[0]:
        for fd, _ in poller.poll(EPOLL_WAIT_S):
            receive, send = by_fd[fd]
            end = _receive_after_rest(receive, buf, rests.pop(fd, b"")) if rests else receive(buf)
            if not end:
                raise BenchFailure("server closed the connection")
            pos, messages = answer(buf, end, out)
            if pos != end:
                rests[fd] = bytes(buf[pos:end])
            if out:
                _send_whole(send, out)
                out.clear()
                received += messages
        counts[slot] = received


def echo(
    process: LoadProcess,
    port: int,
    topic: str,
    channel: str,
    *,
    rdy: int,
    messages_per_s: int,
    warmup_s: float,
    seconds: float,
) -> None:
    """Publishes at a fixed rate on one connection and receives on another. Each body holds the time
    it was sent; reports the median and the 99th percentile of the time to receive it, in ms."""
    consumer = wire.subscribe(port, topic, channel)
    producer = wire.connect(port)
    padding = bytes(wire.BODY_BYTES - STAMP.size)
    buf, replies, out = bytearray(BUFFER_BYTES), bytearray(BUFFER_BYTES), bytearray()
    end = replies_end = received = sent = acked = 0
    samples_ns: list[int] = []
    process.ready()
    consumer.sendall(b"RDY %d\n" % rdy)
    start_ns = time.perf_counter_ns()
    gap_ns = 1_000_000_000 // messages_per_s
    next_ns, warm_ns = start_ns, start_ns + int(warmup_s * 1e9)
    last_ns = warm_ns + int(seconds * 1e9)
    while not process.stop[0] and (now_ns := time.perf_counter_ns()) < last_ns:
        if now_ns >= next_ns:
            producer.sendall(wire.pub(topic, STAMP.pack(time.perf_counter_ns()) + padding))
            next_ns += gap_ns
            sent += 1
        wait_s = max(0, next_ns - time.perf_counter_ns()) / 1e9
        readable, _, _ = select.select((consumer, producer), (), (), wait_s)
        if consumer in readable:
            end += receive_into(consumer, memoryview(buf)[end:])
            now_ns = time.perf_counter_ns()
            pos, messages = wire.answer(buf, end, out)
            if now_ns >= warm_ns:
                samples_ns += _ages_ns(buf, pos, now_ns)
            end = keep_rest(buf, pos, end)
            consumer.sendall(out)
            out.clear()
            received += messages
            process.counts[process.slot] = received
        if producer in readable:
            replies_end += receive_into(producer, memoryview(replies)[replies_end:])
            pos, oks, heartbeats = wire.take_oks(replies, replies_end)
            acked += oks
            check_oks(acked, sent)
            replies_end = keep_rest(replies, pos, replies_end)
            if heartbeats:
                producer.sendall(wire.NOP * heartbeats)
    samples_ns.sort()
    count = len(samples_ns)
    if not count:
        raise BenchFailure("no message came back")
    process.report(
        {
            "p50_ms": samples_ns[count // 2] / 1e6,
            "p99_ms": samples_ns[min(count - 1, count * 99 // 100)] / 1e6,
            "messages": count,
        }
    )


def _ages_ns(buf: bytearray, end: int, now_ns: int) -> list[int]:
    ages, pos = [], 0
    while pos < end:
        size, kind = wire.FRAME_HEAD.unpack_from(buf, pos)
        if kind == wire.MESSAGE:
            ages.append(now_ns - STAMP.unpack_from(buf, pos + wire.BODY_OFFSET)[0])
        pos += 4 + size
    return ages


def check_oks(oks: int, commands: int) -> None:
    """Raises on more OKs than commands; such a server would otherwise look very fast."""
    if oks > commands:
        raise BenchFailure(f"{oks} OKs for {commands} commands")


def receive_into(sock: socket.socket | Upgraded, into: memoryview) -> int:
    """Bytes read; 0 when the receive timeout passed with nothing to read."""
    try:
        size = sock.recv_into(into)
    except BlockingIOError:
        return 0
    if not size:
        raise BenchFailure("server closed the connection")
    return size


def _receive_after_rest(receive: Callable[..., int], buf: bytearray, rest: bytes) -> int:
    """Reads after the partial frame that an earlier read left; returns the end of both."""
    buf[: len(rest)] = rest
    size = receive(memoryview(buf)[len(rest) :])
    if not size:
        raise BenchFailure("server closed the connection")
    return len(rest) + size


def keep_rest(buf: bytearray, pos: int, end: int) -> int:
    """Moves `buf[pos:end]`, a partial frame, to the front; returns its length."""
    rest_bytes = end - pos
    if pos and rest_bytes:
        buf[:rest_bytes] = buf[pos:end]
    return rest_bytes


def _send_whole(send: Callable[[bytes | bytearray], int], data: bytes | bytearray) -> None:
    # These writes are under 3 kB, and the last write on the connection was answered.
    if send(data) != len(data):
        raise BenchFailure("the server does not read: short write")


def _register(
    socks: Sequence[socket.socket],
) -> tuple[select.epoll, dict[int, tuple[Callable[..., int], Callable[..., int]]]]:
    poller = select.epoll()
    by_fd = {}
    for sock in socks:
        sock.setblocking(False)
        poller.register(sock.fileno(), select.EPOLLIN)
        by_fd[sock.fileno()] = (sock.recv_into, sock.send)
    return poller, by_fd
