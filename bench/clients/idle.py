"""Measures what idle consumers cost: CPU of one process with many of them, and nothing to consume.

    python -m bench.clients.idle                           200 consumers on 3 nsqds, 2 in flight
    python -m bench.clients.idle --uvloop --seconds 60
    python -m bench.clients.idle --in-flight 3             with enough for every nsqd

With fewer messages in flight than nsqds, RDY goes round among them also while nothing comes: that
is the cost. JSON lines go to results/client_idle.jsonl; CPU is in percent of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from bench.kit.report import append
from bench.kit.servers import Command, Server, git_commit, machine, machine_busy_s
from pumpline.client import Consumer

RESULTS = Path(__file__).parents[1] / "results" / "client_idle.jsonl"
TARGET_PERCENT = 3.0
SETTLE_S = 10.0  # turns become longer while nothing comes
POLL_S = 0.1


async def idle_percent(
    addresses: list[str], *, consumers: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """CPU of this process, and cores that everything on the machine took."""
    running = [
        Consumer(f"topic{number}", "channel", nsqd=addresses, max_in_flight=in_flight)
        for number in range(consumers)
    ]
    for consumer in running:
        consumer.start()
    while any(len(consumer.connections) < len(addresses) for consumer in running):
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(SETTLE_S)
    began_s, cpu_s, busy_s = time.monotonic(), time.process_time(), machine_busy_s()
    await asyncio.sleep(seconds)
    passed_s = time.monotonic() - began_s
    percent = 100 * (time.process_time() - cpu_s) / passed_s
    busy_cores = (machine_busy_s() - busy_s) / passed_s
    for consumer in running:
        await consumer.stop(timeout_s=0)
    return percent, busy_cores


def main() -> int:
    options = parse()
    command = Command("nsqd", (sys.executable, "-m", "pumpline.tools.nsqd"))
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(command)) for _ in range(options.nsqds)]
        work = idle_percent(
            [f"127.0.0.1:{server.tcp_port}" for server in servers],
            consumers=options.consumers,
            in_flight=options.in_flight,
            seconds=options.seconds,
        )
        if options.uvloop:
            import uvloop

            percent, busy_cores = uvloop.run(work)
        else:
            percent, busy_cores = asyncio.run(work)
    append(
        options.results,
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": git_commit(),
            **{key: value for key, value in vars(options).items() if key != "results"},
            "percent": percent,
            "busy_cores": busy_cores,
            **machine(),
        },
    )
    met = "met" if percent <= TARGET_PERCENT else "missed"
    print(f"{percent:.2f} % of a core (target {TARGET_PERCENT:g}: {met})")
    print(f"{busy_cores:.2f} cores busy on the machine")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clients.idle", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument("--nsqds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines to append to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
