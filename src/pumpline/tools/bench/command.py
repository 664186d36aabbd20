"""`pumpline bench`: publish to and consume from the user's own nsqd, and print rates and latencies.

It works in a topic of its own, which must not exist before, and deletes it at the end, also when
it fails or is interrupted.
"""

import asyncio
import math
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pumpline.client import PumplineError
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import DURATION, INT, STRING, option
from pumpline.core.text.names import is_valid_name
from pumpline.tools.arguments import UsageError
from pumpline.tools.bench.loads import CHANNEL, LOADS, Plan, Timed
from pumpline.tools.bench.server_cpu import cpu_clock
from pumpline.tools.verbs.output import Column, note, shown_number
from pumpline.tools.verbs.verb import Call, Nothing, Verb, VerbOptions, run_verb

TOPIC_PREFIX = "pumpline-bench-"
PERCENTILES = (50, 95, 99, 100)


@dataclass(slots=True, kw_only=True)
class BenchOptions(VerbOptions):
    topic: str = option(
        STRING, "", f"a topic that does not exist yet ({TOPIC_PREFIX}… if it is not given)"
    )
    duration_ns: int = option(DURATION, 2 * NS_PER_S, "how long each test takes")
    messages: int = option(INT, 1_000_000, "how many messages each test may publish at most")
    size: int = option(INT, 200, "bytes of a message")
    batch: int = option(INT, 200, "messages of an MPUB")
    connections: int = option(INT, 2, "connections that publish batches")


def run(call: Call[BenchOptions]) -> int:
    options = call.options
    for name in ("duration_ns", "messages", "size", "batch", "connections"):
        if getattr(options, name) <= 0:
            raise UsageError(f"--{name.removesuffix('_ns')} is more than 0")
    topic = options.topic or f"{TOPIC_PREFIX}{secrets.token_hex(4)}"
    if not is_valid_name(topic):
        raise UsageError(f"{topic} is no name of a topic")
    nodes = call.nodes()
    if len(nodes) != 1:
        raise UsageError(f"bench measures one nsqd, not {len(nodes)}: say --nsqd <host>:<port>")
    (node,) = nodes
    try:
        plan = _plan(node, topic, options)
        if read_stats(node, topic).topics:
            raise Nothing(f"nsqd {node.address} has a topic {topic}: bench needs one of its own")
        node.post("/topic/create", {"topic": topic})
    except NodeFailure as failure:
        raise Nothing(f"nsqd {node.address}: {failure}") from None
    try:
        rows = _measured(node, plan, is_table=call.out.is_table)
    except (NodeFailure, PumplineError) as error:
        raise Nothing(f"nsqd {node.address}: {error}") from None
    finally:
        _delete(node, topic)
    call.out.rows(COLUMNS, rows, empty="nothing was measured")
    return call.exit_code


def _plan(node: ClusterNode, topic: str, options: BenchOptions) -> Plan:
    info = node.get_json("/info")
    port = info.get("tcp_port") if isinstance(info, dict) else None
    if not isinstance(port, int):
        raise NodeFailure("it answers /info as no nsqd does")
    host = node.address.removeprefix("https://").rpartition(":")[0]
    return Plan(
        tcp_address=f"{host}:{port}",
        topic=topic,
        duration_s=options.duration_ns / NS_PER_S,
        messages_max=options.messages,
        body_bytes=options.size,
        batch=min(options.batch, options.messages),
        connections=options.connections,
    )


def _measured(node: ClusterNode, plan: Plan, *, is_table: bool) -> list[dict[str, object]]:
    where = {"topic": plan.topic, "channel": CHANNEL}
    node.post("/channel/create", where)
    clock = cpu_clock(node, plan.topic, plan.tcp_address)
    rows = []
    for name, (load, is_emptied) in LOADS.items():
        if is_emptied:
            node.post("/channel/empty", where)
        if is_table:
            note(f"{name} ...")
        before_s = clock()
        timed = asyncio.run(load(plan))
        after_s = clock()
        cpu_s = after_s - before_s if before_s is not None and after_s is not None else None
        rows.append(_row(name, timed, cpu_s))
    return rows


def _row(name: str, timed: Timed, cpu_s: float | None) -> dict[str, object]:
    row: dict[str, object] = {
        "test": name,
        "messages": timed.messages,
        "seconds": round(timed.seconds, 3),
        "rate": round(timed.messages / timed.seconds) if timed.seconds else None,
    }
    ordered = sorted(timed.latencies_s)
    for percent in PERCENTILES:
        at = max(math.ceil(len(ordered) * percent / 100) - 1, 0)
        row[f"latency_ms_p{percent}"] = round(ordered[at] * 1000, 3) if ordered else None
    per_message = cpu_s / timed.messages * 1e6 if cpu_s is not None and timed.messages else None
    row["server_cpu_us"] = round(per_message, 2) if per_message is not None else None
    row["server_cpu_percent"] = (
        round(100 * cpu_s / timed.seconds) if cpu_s is not None and timed.seconds else None
    )
    return row


def _delete(node: ClusterNode, topic: str) -> None:
    try:
        node.post("/topic/delete", {"topic": topic})
    except NodeFailure as failure:
        note(f"nsqd {node.address}: {failure}; topic {topic} is left there")


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)


COLUMNS = (
    Column("test", "test"),
    Column("messages", "messages", shown_number, is_number=True),
    Column("seconds", "seconds", _shown, is_number=True),
    Column("rate", "messages/s", shown_number, is_number=True),
    Column("latency_ms_p50", "p50 ms", _shown, is_number=True),
    Column("latency_ms_p95", "p95 ms", _shown, is_number=True),
    Column("latency_ms_p99", "p99 ms", _shown, is_number=True),
    Column("latency_ms_p100", "max ms", _shown, is_number=True),
    Column("server_cpu_us", "nsqd us/message", _shown, is_number=True),
    Column("server_cpu_percent", "nsqd CPU %", _shown, is_number=True),
)
VERB = Verb(
    name="bench",
    summary="measure how fast an nsqd takes and delivers messages",
    places="",
    options=BenchOptions,
    examples="""
        pumpline bench --nsqd 127.0.0.1:4151
        pumpline bench --nsqd 127.0.0.1:4151 --size 1000 --duration 500ms --connections 4
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
