"""Measures deferred messages: a million of them, due at random times over a minute.

    python -m bench.nsqd.deferred                              ours, one run of each workload
    python -m bench.nsqd.deferred --peer path/to/go/nsqd       by turns with Go's, in memory
    python -m bench.nsqd.deferred --messages 20000 --lead 2 --spread 10 --workload rdy2500

| workload  | consumers                                                                     |
|-----------|-------------------------------------------------------------------------------|
| rdy2500   | one, RDY 2500                                                                 |
| several   | four, RDY 200 each                                                            |
| rdy1      | one, RDY 1: a tenth of the messages                                           |
| kill      | as rdy2500; nsqd is killed before the first message is due, and started again |
| requeue   | one, RDY 2500: plain PUBs; each first delivery is requeued with a delay       |

One client publishes with DPUB, one message a command, pipelined. Each message is due at a random
time in the `--spread` seconds that begin `--lead` seconds after the first publish. Meanwhile
another client sends one PUB after another to a topic of its own: `pub_wait_ms` is the longest
time that one took. Lateness is the time of receipt less the publish time in the frame less the
delay. JSON lines go to results/deferred.jsonl.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.kit import wire
from bench.kit.load_processes import LoadProcess, LoadProcesses
from bench.kit.report import append
from bench.kit.servers import BenchFailure, Command, Server, git_commit, machine
from bench.nsqd.load import BUFFER_BYTES, keep_rest, receive_into
from pumpline.core.messages.kernels import fin_commands

RESULTS = Path(__file__).parents[1] / "results" / "deferred.jsonl"
TOPIC, CHANNEL, PROBED = "deferred", "c", "probed"
WINDOW = 400  # publishes in flight
COMMANDS_PER_SEND = 100
GIVE_UP_S = 120.0  # after the last message was due
PROBE_PAUSE_S = 0.002
NS_PER_MS = 1_000_000
_HEAD = struct.Struct(">xxxxxxxxQH16sI")  # of a frame and its body: time, attempts, id, delay in ms


@dataclass(frozen=True)
class Deferred:
    """A workload."""

    name: str
    consumers: int = 1
    rdy: int = 2500
    part: int = 1  # of the messages: one of so many
    kills: bool = False
    requeues: bool = False


WORKLOADS = (
    Deferred("rdy2500"),
    Deferred("several", consumers=4, rdy=200),
    Deferred("rdy1", rdy=1, part=10),
    Deferred("kill", kills=True),
    Deferred("requeue", requeues=True),
)


# -- load ---------------------------------------------------------------------------------------


def publish(
    process: LoadProcess, port: int, *, messages: int, lead_s: float, spread_s: float, plain: bool
) -> None:
    """DPUB with random delays, or PUB of messages that say with which delay to requeue them."""
    chance = random.Random(messages)
    sock = wire.connect(port)
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    rest = bytes(wire.BODY_BYTES - 4)
    process.ready()
    began_s = time.monotonic()
    sent = answered = end = 0
    while answered < messages and not process.stop[0]:
        commands = []
        late_s = time.monotonic() - began_s
        for _ in range(min(COMMANDS_PER_SEND, WINDOW - sent + answered, messages - sent)):
            delay_ms = int(1000 * max(lead_s - late_s + spread_s * chance.random(), 0.001))
            body = struct.pack(">I", delay_ms) + rest
            commands.append(wire.pub(TOPIC, body) if plain else wire.dpub(TOPIC, delay_ms, body))
        if commands:
            sock.sendall(b"".join(commands))
            sent += len(commands)
        end += receive_into(sock, view[end:])
        pos, oks, heartbeats = wire.take_oks(buf, end)
        end = keep_rest(buf, pos, end)
        if heartbeats:
            sock.sendall(wire.NOP)
        answered += oks
        process.counts[process.slot] = answered
    process.report({"published_s": time.monotonic() - began_s, "ended_s": time.monotonic()})


def consume(process: LoadProcess, port: int, *, rdy: int, requeues: bool) -> None:
    """Finish messages, and note how late each came; if asked to, requeue each once before."""
    sock = wire.subscribe(port, TOPIC, CHANNEL)
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    fins = bytearray()
    late_us = array("q")
    due_ns: dict[bytes, int] = {}  # of requeued messages
    process.ready()
    sock.sendall(b"RDY %d\n" % rdy)
    first_s = last_s = 0.0
    end = 0
    while not process.stop[0]:
        end += receive_into(sock, view[end:])
        now_ns = time.time_ns()
        pos = 0
        while pos < end:
            fins.clear()
            after, count = fin_commands(buf, pos, end, fins)
            if not count:
                after = _skip_heartbeat(sock, buf, pos, end)
                if after == pos:
                    break
            if count:
                last_s = time.monotonic()
                first_s = first_s or last_s
                for _ in range(count):
                    timestamp_ns, attempts, message_id, delay_ms = _HEAD.unpack_from(buf, pos)
                    pos += wire.BODY_OFFSET + wire.BODY_BYTES
                    if not requeues:
                        late = now_ns - timestamp_ns - delay_ms * NS_PER_MS
                    elif attempts > 1:
                        late = now_ns - due_ns.pop(message_id)
                    else:
                        due_ns[message_id] = now_ns + delay_ms * NS_PER_MS
                        command = b"REQ %b %d\n" % (message_id, delay_ms)
                        fins = fins.replace(b"FIN %b\n" % message_id, command)
                        continue
                    late_us.append(late // 1000)
                sock.sendall(fins)
            pos = after
        end = keep_rest(buf, pos, end)
        process.counts[process.slot] = len(late_us)
    _report_lateness(process, late_us, first_s, last_s)


def _skip_heartbeat(sock: Any, buf: bytearray, pos: int, end: int) -> int:
    """The position after a heartbeat, which is answered; `pos` if the frame is not whole."""
    if end - pos < wire.FRAME_HEAD.size:
        return pos
    size, kind = wire.FRAME_HEAD.unpack_from(buf, pos)
    if kind == wire.MESSAGE or end - pos < 4 + size:
        return pos
    if kind == wire.ERROR:
        raise BenchFailure(f"a consumer got {bytes(buf[pos + 8 : pos + 4 + size])!r}")
    sock.sendall(wire.NOP)
    return pos + 4 + size


def _report_lateness(process: LoadProcess, late_us: array[int], first: float, last: float) -> None:
    ordered = sorted(late_us)
    if not ordered:
        process.report({})
        return
    process.report(
        {
            "count": len(ordered),
            "first_s": first,
            "last_s": last,
            "late_p50_ms": ordered[len(ordered) // 2] / 1000,
            "late_p99_ms": ordered[len(ordered) * 99 // 100] / 1000,
            "late_max_ms": ordered[-1] / 1000,
            "early_ms": max(-ordered[0] / 1000, 0),
        }
    )


def probe(process: LoadProcess, port: int) -> None:
    """One PUB after another, to another topic; the longest waits."""
    sock = wire.connect(port)
    command = wire.pub(PROBED)
    waits_s: list[float] = []
    process.ready()
    sock.settimeout(GIVE_UP_S)
    while not process.stop[0]:
        began_s = time.perf_counter()
        sock.sendall(command)
        while wire.read_response(sock) != b"OK":
            sock.sendall(wire.NOP)
        waits_s.append(time.perf_counter() - began_s)
        process.counts[process.slot] += 1
        time.sleep(PROBE_PAUSE_S)
    ordered = sorted(waits_s)
    process.report(
        {
            "pub_wait_ms": ordered[-1] * 1000,
            "pub_wait_p999_ms": ordered[len(ordered) * 999 // 1000] * 1000,
        }
    )


# -- one run ------------------------------------------------------------------------------------


def run(server: Server, workload: Deferred, options: argparse.Namespace) -> dict[str, Any]:
    messages = options.messages // workload.part
    lead_s = options.lead / workload.part
    server.create(TOPIC, CHANNEL)
    server.create(PROBED)
    figures: dict[str, Any] = {"messages": messages, "lead_s": lead_s, "spread_s": options.spread}
    began_s = time.monotonic()
    cpu_s = server.cpu_s()
    due_s = began_s + lead_s + options.spread
    waits = _publish(server, workload, options, messages, lead_s, figures)
    figures["publish_cpu_us"] = 1e6 * (server.cpu_s() - cpu_s) / messages
    figures["rss_deferred_mb"] = server.rss_mb()
    if workload.kills:
        figures["rss_before_kill_mb"] = server.rss_peak_mb()
        figures["start_s"] = server.restart()
    if workload.requeues:
        due_s = time.monotonic() + lead_s + options.spread
    cpu_s = server.cpu_s()
    waits += _consume(server, workload, messages, due_s, figures)
    figures["deliver_cpu_us"] = 1e6 * (server.cpu_s() - cpu_s) / messages
    figures["rss_peak_mb"] = server.rss_peak_mb()
    figures["pub_wait_ms"] = max(each["pub_wait_ms"] for each in waits)
    figures["pub_wait_p999_ms"] = max(each["pub_wait_p999_ms"] for each in waits)
    return figures


def _publish(
    server: Server,
    workload: Deferred,
    options: argparse.Namespace,
    messages: int,
    lead_s: float,
    figures: dict[str, Any],
) -> list[dict[str, float]]:
    with LoadProcesses() as load:
        how = {"lead_s": lead_s, "spread_s": options.spread, "plain": workload.requeues}
        slot = load.add(publish, server.tcp_port, messages=messages, **how)
        processes = 1 + load.add(probe, server.tcp_port)
        load.connect(server)
        load.begin()
        while load.counts[slot] < messages:
            _wait(server, load)
        found = _stop(load, processes)
    (published,) = (each for each in found if "published_s" in each)
    figures["publish_rate"] = messages / published["published_s"]
    return [each for each in found if "pub_wait_ms" in each]


def _consume(
    server: Server, workload: Deferred, messages: int, due_s: float, figures: dict[str, Any]
) -> list[dict[str, float]]:
    with LoadProcesses() as load:
        how = {"rdy": workload.rdy, "requeues": workload.requeues}
        slots = [load.add(consume, server.tcp_port, **how) for _ in range(workload.consumers)]
        processes = 1 + load.add(probe, server.tcp_port)
        load.connect(server)
        load.begin()
        while sum(load.counts[slot] for slot in slots) < messages:
            _wait(server, load)
            if time.monotonic() > due_s + GIVE_UP_S:
                break
        figures["received"] = sum(load.counts[slot] for slot in slots)
        found = _stop(load, processes)
    late = [each for each in found if "count" in each]
    if late:
        begun_s = min(each["first_s"] for each in late)
        took_s = max(each["last_s"] for each in late) - begun_s
        figures["rate"] = figures["received"] / max(took_s, 1e-6)
        figures["done_after_due_s"] = max(each["last_s"] for each in late) - due_s
        for key in ("late_p50_ms", "late_p99_ms", "late_max_ms", "early_ms"):
            figures[key] = max(each[key] for each in late)
    return [each for each in found if "pub_wait_ms" in each]


def _wait(server: Server, load: LoadProcesses) -> None:
    load.check(server)
    time.sleep(0.05)


def _stop(load: LoadProcesses, processes: int) -> list[dict[str, float]]:
    """Stop the processes; returns what each has found."""
    load.stop[0] = 1
    return [load.found() for _ in range(processes)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqd.deferred",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--lead", type=float, default=30.0, help="seconds, default %(default)s")
    parser.add_argument("--spread", type=float, default=60.0, help="seconds, default %(default)s")
    parser.add_argument("--workload", default=",".join(names), help="of " + ", ".join(names))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--peer", type=Path, metavar="NSQD", help="Go's nsqd")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    commands = [Command.parse(text) for text in options.server]
    if not commands:
        commands = [Command("pumpline", (sys.executable, "-m", "pumpline.tools.nsqd"))]
    if options.peer is not None:
        words = (str(options.peer), "--mem-queue-size=1000000")
        commands.append(Command("go", words, is_peer=True))
    chosen = [each for each in WORKLOADS if each.name in options.workload.split(",")]
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    failed = False
    for number in range(options.rounds):
        for workload in chosen:
            for command in commands:
                if workload.kills and command.is_peer:
                    continue  # it forgets what is deferred
                record = {
                    "run": begun,
                    "commit": git_commit(),
                    "machine": machine(),
                    "workload": workload.name,
                    "server": command.name,
                    "round": number,
                }
                try:
                    with Server(command, data_root=options.data_root, flags=_flags) as server:
                        record |= run(server, workload, options)
                    failed = failed or record["received"] < record["messages"]
                except BenchFailure as failure:
                    record["error"] = str(failure)
                    failed = True
                append(options.results, record)
                print(_line(record), flush=True)
    return 1 if failed else 0


def _flags(_: Path) -> list[str]:
    return ["--max-req-timeout=1h", "--msg-timeout=60s"]


def _line(record: dict[str, Any]) -> str:
    hidden = ("run", "commit", "machine", "round", "workload", "server")
    figures = " ".join(
        f"{key}={value:.5g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in record.items()
        if key not in hidden
    )
    return f"{record['workload']:8} {record['server']:9} {figures}"


if __name__ == "__main__":
    sys.exit(main())
