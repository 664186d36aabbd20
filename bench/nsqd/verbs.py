"""The workloads of the verbs beside PUB, MPUB and FIN, and of large messages.

| workload       | load                                                  | figure                 |
|----------------|-------------------------------------------------------|------------------------|
| touch          | TOUCH of 500 messages in flight, again and again      | touches / s            |
| req0           | 200,000 messages, each REQ 0 once, then FIN           | messages finished / s  |
| req3000        | the same with REQ 3000: three seconds at least        | messages finished / s  |
| dpub           | DPUB of a minute, 2 connections, 50 in flight on each | messages published / s |
| large_pub      | PUB of 500 kB, 2 connections, 4 in flight on each     | messages published / s |
| large_sub      | RDY 20, 2 consumers on 500 kB messages                | messages received / s  |

Knows load, servers and targets; must not know the table or the files that results go to.
"""

from __future__ import annotations

from functools import partial

from bench.kit.load_processes import LoadProcesses
from bench.kit.servers import Server
from bench.nsqd.load import Topics, drain, publish
from bench.nsqd.measuring import Figure, Size, measure
from bench.nsqd.verb_load import requeue_once, touch_again
from bench.nsqd.workloads import CHANNEL, PUB_WINDOW, RDY_MAX, TOPIC, Workload, at_least, preload

TOUCHED = 500
TOUCH_BACKLOG = 100_000
DPUB_DELAY_MS = 60_000
LARGE_BYTES = 500_000
LARGE_WINDOW = 4
LARGE_TOUCHED = 2  # times the bytes of all messages: of both brokers each takes some more
LARGE_RDY = 20
LARGE_BUFFER_BYTES = 1 << 20


def run_touch(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    preload(server, TOPIC, TOUCH_BACKLOG)
    with LoadProcesses() as load:
        slot = load.add(touch_again, server.tcp_port, TOPIC, CHANNEL, rdy=TOUCHED)
        load.connect(server)
        return measure(server, load, [slot], size, channels=None)


def run_req(server: Server, size: Size, *, delay_ms: int) -> Figure:
    server.create(TOPIC, CHANNEL)
    preload(server, TOPIC, size.requeued)
    how = {"rdy": RDY_MAX, "delay_ms": delay_ms}
    with LoadProcesses() as load:
        slot = load.add(requeue_once, server.tcp_port, TOPIC, CHANNEL, **how)
        load.connect(server)
        return measure(server, load, [slot], size, whole=size.requeued)


def run_dpub(server: Server, size: Size) -> Figure:
    topics = Topics(TOPIC, CHANNEL, server.http_port, messages_each=size.backlog // 2)
    how = {"messages_per_command": 1, "window": PUB_WINDOW, "delay_ms": DPUB_DELAY_MS}
    with LoadProcesses() as load:
        slots = [load.add(publish, server.tcp_port, topics, **how) for _ in range(2)]
        load.connect(server)
        return measure(server, load, slots, size)


def run_large_pub(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    return _publish_large(server, size)


def run_large_sub(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    _publish_large(server, size)
    how = {"rdy": LARGE_RDY, "buffer_bytes": LARGE_BUFFER_BYTES}
    with LoadProcesses() as load:
        slots = [load.add(drain, server.tcp_port, TOPIC, CHANNEL, **how) for _ in range(2)]
        load.connect(server)
        return measure(server, load, slots, size, whole=size.large)


def _publish_large(server: Server, size: Size) -> Figure:
    server.touch_memory(LARGE_TOUCHED * size.large * LARGE_BYTES)
    how = {"messages_per_command": 1, "window": LARGE_WINDOW, "body_bytes": LARGE_BYTES}
    with LoadProcesses() as load:
        slots = [
            load.add(publish, server.tcp_port, TOPIC, messages_max=size.large // 2, **how)
            for _ in range(2)
        ]
        load.connect(server)
        return measure(server, load, slots, size, whole=size.large)


VERBS = (
    Workload("touch", run_touch, at_least(1.2), unit="touch/s"),
    Workload("req0", partial(run_req, delay_ms=0), at_least(1.2)),
    Workload("req3000", partial(run_req, delay_ms=3000), at_least(1.2)),
    Workload("dpub", run_dpub, at_least(1.2)),
    Workload("large_pub", run_large_pub, at_least(1.2)),
    Workload("large_sub", run_large_sub, at_least(1.2)),
)
