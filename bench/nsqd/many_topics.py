"""The workloads over many topics: what a broker does once a topic counts here, not once a message.

| workload        | load                                                       | figure        |
|-----------------|------------------------------------------------------------|---------------|
| pub_topics      | PUB, 2 connections, 50 in flight, 100 topics in turn       | published / s |
| pub_topics1000  | the same over 1,000 topics                                 | published / s |
| mpub_topics1000 | MPUB of 10, 2 connections, 50 in flight, 1,000 topics      | published / s |
| http_pub_topics | POST /pub, 20 connections kept open, 100 topics in turn    | published / s |
| sub_topics      | a backlog in 100 topics, a consumer with RDY 100 on each   | received / s  |
| both_topics     | pub_topics, with those consumers, at most 20,000 apart     | received / s  |
| mpub_fsync      | `mpub` of bench.nsqd.workloads with --sync-every=1         | published / s |
| pub_fsync       | `pub_sync` of bench.nsqd.workloads with --sync-every=1     | published / s |
| sync_topics     | pub_topics with --sync-every=1, then the same to one topic | 100 / one     |

Messages have 200 bytes, every topic has a channel. In turn: each message of a connection goes to
the topic after that of the last one. Knows load and servers; must not know the table.
"""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.kit import wire
from bench.kit.load_processes import LoadProcess, LoadProcesses
from bench.kit.servers import Server
from bench.nsqd.http_load import check_reply, pub_request
from bench.nsqd.load import (
    BUFFER_BYTES,
    EPOLL_WAIT_S,
    MPUB_MESSAGES,
    Lead,
    check_oks,
    drain_many,
    keep_rest,
    receive_into,
)
from bench.nsqd.measuring import Figure, Size, measure
from bench.nsqd.workloads import (
    CHANNEL,
    PUB_WINDOW,
    Target,
    Workload,
    at_least,
    run_mpub,
    run_pub_sync,
)

TOPICS = 100
CONNECTIONS = 2
HTTP_CONNECTIONS = 20
SMALL_MPUB_MESSAGES = 10
RDY = 100
LEAD_MESSAGES = 20_000


def publish_in_rotation(
    process: LoadProcess,
    port: int,
    topics: Sequence[str],
    *,
    window: int,
    messages_per_command: int = 1,
    commands_max: int | None = None,
    lead: Lead | None = None,
) -> None:
    """One connection with `window` commands in flight, each to the next topic: PUB, or MPUB when a
    command is more than one message. Counts acknowledged messages. Names must be of one length."""
    bodies = [bytes(wire.BODY_BYTES)] * messages_per_command
    make: Callable[[str], bytes] = (
        wire.pub if messages_per_command == 1 else lambda topic: wire.mpub(topic, bodies)
    )
    commands = [make(topic) for topic in topics]
    command_bytes = len(commands[0])
    round_bytes = command_bytes * len(commands)
    rounds = 1 + -(-window // len(commands))
    pieces = memoryview(b"".join(commands) * rounds)
    sock = wire.connect(port)
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    counts, slot, stop = process.counts, process.slot, process.stop
    process.ready()
    sent = window if commands_max is None else min(window, commands_max)
    at = sent * command_bytes
    sock.sendall(pieces[:at])
    at %= round_bytes
    acked = end = 0
    while not stop[0] and acked != commands_max:
        end += receive_into(sock, view[end:])
        pos, oks, heartbeats = wire.take_oks(buf, end)
        end = keep_rest(buf, pos, end)
        if heartbeats:
            sock.sendall(wire.NOP * heartbeats)
        acked += oks
        check_oks(acked, sent)
        counts[slot] = acked * messages_per_command
        if commands_max is not None:
            oks = min(oks, commands_max - sent)
        if oks:
            if lead:
                lead.wait(process)
            sock.sendall(pieces[at : at + oks * command_bytes])
            at = (at + oks * command_bytes) % round_bytes
            sent += oks


def post_in_rotation(
    process: LoadProcess, port: int, topics: Sequence[str], *, connections: int
) -> None:
    """One POST /pub outstanding on each connection, in one epoll loop, each to the next topic."""
    requests = itertools.cycle([pub_request(topic) for topic in topics])
    poller, socks = select.epoll(), {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        poller.register(sock, select.EPOLLIN)
        socks[sock.fileno()] = sock
    buf = bytearray(BUFFER_BYTES)
    counts, slot, stop = process.counts, process.slot, process.stop
    process.ready()
    for sock in socks.values():
        sock.sendall(next(requests))
    acked = 0
    while not stop[0]:
        for fd, _ in poller.poll(EPOLL_WAIT_S):
            sock = socks[fd]
            check_reply(buf, sock.recv_into(buf))
            sock.sendall(next(requests))
            acked += 1
        counts[slot] = acked


def create_topics(server: Server, count: int) -> list[str]:
    """Creates topics with a channel each; returns their names."""
    topics = [f"bench-{index:05}" for index in range(count)]
    for topic in topics:
        server.create(topic, CHANNEL)
    return topics


def preload_topics(server: Server, topics: Sequence[str], messages: int) -> None:
    """Queues messages by MPUB, as many in every topic; returns when all are acknowledged."""
    each = messages // len(topics) // MPUB_MESSAGES
    with LoadProcesses() as load:
        how = {"window": 4, "messages_per_command": MPUB_MESSAGES}
        commands_max = each * len(topics)
        slot = load.add(
            publish_in_rotation, server.tcp_port, topics, **how, commands_max=commands_max
        )
        load.connect(server)
        load.begin()
        load.wait_until(server, [slot], messages=commands_max * MPUB_MESSAGES)


def _publish(
    server: Server, size: Size, topics: Sequence[str], *, messages_per_command: int = 1
) -> Figure:
    with LoadProcesses() as load:
        slots = [
            # Connections begin at different topics, as if they had been running for a while.
            load.add(
                publish_in_rotation,
                server.tcp_port,
                _turned(topics, index, CONNECTIONS),
                window=PUB_WINDOW,
                messages_per_command=messages_per_command,
            )
            for index in range(CONNECTIONS)
        ]
        load.connect(server)
        return measure(server, load, slots, size)


def _turned(topics: Sequence[str], index: int, count: int) -> list[str]:
    start = len(topics) * index // count
    return [*topics[start:], *topics[:start]]


def run_pub_topics(server: Server, size: Size) -> Figure:
    return _publish(server, size, create_topics(server, TOPICS))


def run_pub_topics1000(server: Server, size: Size) -> Figure:
    return _publish(server, size, create_topics(server, 10 * TOPICS))


def run_mpub_topics1000(server: Server, size: Size) -> Figure:
    topics = create_topics(server, 10 * TOPICS)
    return _publish(server, size, topics, messages_per_command=SMALL_MPUB_MESSAGES)


def run_http_pub_topics(server: Server, size: Size) -> Figure:
    topics = create_topics(server, TOPICS)
    with LoadProcesses() as load:
        slot = load.add(post_in_rotation, server.http_port, topics, connections=HTTP_CONNECTIONS)
        load.connect(server)
        return measure(server, load, [slot], size)


def run_sub_topics(server: Server, size: Size) -> Figure:
    topics = create_topics(server, TOPICS)
    preload_topics(server, topics, size.backlog)
    with LoadProcesses() as load:
        slots = [
            load.add(drain_many, server.tcp_port, topics[index::2], CHANNEL, rdy=RDY)
            for index in range(2)
        ]
        load.connect(server)
        return measure(server, load, slots, size, backlog=size.backlog)


def run_both_topics(server: Server, size: Size) -> Figure:
    topics = create_topics(server, TOPICS)
    lead = Lead([0], [[1]], messages_max=LEAD_MESSAGES)
    with LoadProcesses() as load:
        load.add(publish_in_rotation, server.tcp_port, topics, window=2 * PUB_WINDOW, lead=lead)
        slot = load.add(drain_many, server.tcp_port, topics, CHANNEL, rdy=RDY)
        load.connect(server)
        return measure(server, load, [slot], size)


def run_sync_topics(server: Server, size: Size) -> Figure:
    topics = create_topics(server, TOPICS)
    many = _publish(server, size, topics)
    one = _publish(server, size, topics[:1])
    return replace(
        many, value=many.value / one.value, extra={"rate": many.value, "rate_one": one.value}
    )


def sync_flags(_directory: Path) -> Sequence[str]:
    """Every answer waits for an fsync."""
    return ("--sync-every=1",)


MANY_TOPICS = (
    Workload("pub_topics", run_pub_topics, at_least(1.2)),
    Workload("pub_topics1000", run_pub_topics1000, at_least(1.2)),
    Workload("mpub_topics1000", run_mpub_topics1000, at_least(1.0)),
    Workload("http_pub_topics", run_http_pub_topics, at_least(1.2)),
    Workload("sub_topics", run_sub_topics, at_least(1.5)),
    Workload("both_topics", run_both_topics, at_least(1.2)),
    Workload("mpub_fsync", run_mpub, at_least(1.0), flags=sync_flags),
    Workload("pub_fsync", run_pub_sync, at_least(1.0), flags=sync_flags),
    Workload(
        "sync_topics",
        run_sync_topics,
        Target("value", 0.5),
        "of one's rate",
        flags=sync_flags,
    ),
)
