"""NSQ's own load clients, bench_writer and bench_reader: the second measurement of three workloads.

They publish with one MPUB outstanding on a connection, decode every message, and use more CPU than
bench.nsqd.load does. On few cores the broker gets less CPU beside them. Both figures are true: one
is of the broker alone, one of the broker beside such clients. Knows the flags of the two programs
and their one line of results; must not know the table.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.kit.servers import BenchFailure, Server, machine_busy_s
from bench.nsqd.measuring import Figure, Size
from bench.nsqd.workloads import CHANNEL, RDY_MAX, TOPIC, Workload, at_least, preload

# One connection for each thread.
CONNECTIONS = 2
# Short enough that a Go nsqd's messages stay within a memory queue of a million.
WRITE_S_MAX = 1.5
READ_S_MAX = 2.0
# bench_reader divides by its whole running time, so a backlog that runs dry gives a false figure.
BACKLOG_MAX = 16_000_000
EXIT_GRACE_S = 10.0

_OPS = re.compile(r"duration: .* - ([0-9.]+)ops/s")


@dataclass
class GoClients:
    """The directory of the two programs, and the backlog that each server turned out to need."""

    directory: Path
    _backlogs: dict[str, int] = field(default_factory=dict)

    def workloads(self) -> tuple[Workload, ...]:
        """The same three targets, measured with these clients."""
        return (
            Workload("mpub_go", self.run_mpub, at_least(2.5)),
            Workload("sub_go", self.run_sub, at_least(2.5)),
            Workload("both_go", self.run_both, at_least(2)),
        )

    def run_mpub(self, server: Server, size: Size) -> Figure:
        server.create(TOPIC, CHANNEL)
        seconds = min(size.seconds, WRITE_S_MAX)
        return _timed(server, [self._writer(server, TOPIC, seconds)], seconds)

    def run_sub(self, server: Server, size: Size) -> Figure:
        seconds = min(size.seconds, READ_S_MAX)
        name = server.command.name
        backlog = self._backlogs.get(name, size.backlog)
        while backlog <= BACKLOG_MAX:
            topic = f"{TOPIC}{backlog}"
            server.create(topic, CHANNEL)
            preload(server, topic, backlog)
            figure = _timed(server, [self._reader(server, topic, seconds)], seconds)
            if server.channel_depth(topic, CHANNEL) > 0:
                self._backlogs[name] = backlog
                return figure
            backlog *= 2
        raise BenchFailure(f"a backlog of {backlog // 2:,} ran dry in {seconds:g} s")

    def run_both(self, server: Server, size: Size) -> Figure:
        server.create(TOPIC, CHANNEL)
        reader = self._reader(server, TOPIC, size.seconds)
        writer = self._writer(server, TOPIC, size.seconds)
        return _timed(server, [reader, writer], size.seconds)

    def _writer(self, server: Server, topic: str, seconds: float) -> list[str]:
        return [
            *self._words("bench_writer", server, topic, seconds),
            "-batch-size=200",
        ]

    def _reader(self, server: Server, topic: str, seconds: float) -> list[str]:
        return [
            *self._words("bench_reader", server, topic, seconds),
            f"-channel={CHANNEL}",
            f"-rdy={RDY_MAX}",
        ]

    def _words(self, program: str, server: Server, topic: str, seconds: float) -> list[str]:
        return [
            str(self.directory / program),
            f"-nsqd-tcp-address=127.0.0.1:{server.tcp_port}",
            f"-runfor={round(seconds * 1000)}ms",
            "-size=200",
            f"-topic={topic}",
        ]


def _timed(server: Server, commands: Sequence[Sequence[str]], seconds: float) -> Figure:
    """Runs the programs together; the rate is of the first one, the CPU time of all."""
    env = {**os.environ, "GOMAXPROCS": str(CONNECTIONS)}
    from_s, from_broker, from_busy = time.perf_counter(), server.cpu_s(), machine_busy_s()
    from_clients = _children_cpu_s()
    clients: list[subprocess.Popen[str]] = []
    try:
        for words in commands:
            try:
                clients.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env))
            except OSError as error:
                raise BenchFailure(f"cannot start {words[0]}: {error}") from error
        rates = [_rate(client, server, seconds + EXIT_GRACE_S) for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    elapsed_s = time.perf_counter() - from_s
    broker_s, busy_s = server.cpu_s() - from_broker, machine_busy_s() - from_busy
    clients_s = _children_cpu_s() - from_clients
    messages = rates[0] * elapsed_s
    if not messages:
        raise BenchFailure("no message was counted")
    # The programs print a rate and not a count; their running time is a little over `seconds`.
    counted, stored = rates[0] * seconds * 0.95, server.stored()
    if counted > stored:
        raise BenchFailure(f"Go client counted {counted:,.0f}, server took in {stored:,}")
    return Figure(
        value=rates[0],
        rss_mb=server.rss_peak_mb(),
        cpu_us_per_message=broker_s / messages * 1e6,
        client_us_per_message=clients_s / messages * 1e6,
        broker_cores=broker_s / elapsed_s,
        client_cores=clients_s / elapsed_s,
        client_cores_min=clients_s / elapsed_s / (CONNECTIONS * len(clients)),
        other_cores=max(0.0, busy_s - broker_s - clients_s) / elapsed_s,
    )


def _rate(client: subprocess.Popen[str], server: Server, timeout_s: float) -> float:
    try:
        _, text = client.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchFailure("a Go client did not end") from None
    server.check_alive()
    found = _OPS.search(text)
    if client.returncode or not found:
        first = next((line for line in text.splitlines() if "panic" in line), text[-200:])
        raise BenchFailure(f"Go client ended with {client.returncode}: {first}")
    return float(found[1])


def _children_cpu_s() -> float:
    """CPU time of child processes that have ended; the server is not among them while it runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
