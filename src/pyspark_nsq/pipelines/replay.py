"""Publishes a part of a topic, or of an archived table, again to a topic.

The part is chosen by time (--since, --until), by offsets and by a condition in SQL (--where), and
is fixed when the replay begins. If the condition could choose other rows later, as with rand() or
now(), the rows are written to files first (STATE.rows). They are published in steps, each a range
of offsets of one log. A file (--state) counts the steps that are done; the same command goes on
with the next. A step that a kill interrupts is published again, cut the same way and with the same
publish tokens, so that nodes skip what they have (a Go nsqd, which knows no tokens, gets that part
twice). Steps of a node that is away come last; while it is away, the replay is not done.
"""

import hashlib
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyspark_nsq.errors import BadOption, DataLoss, NotAllRead, NsqError
from pyspark_nsq.nodes.absence import described, sentence, way_out
from pyspark_nsq.nodes.bounds import answered_survey, complete_survey, offsets_at
from pyspark_nsq.nodes.nodes import Nodes, Survey
from pyspark_nsq.nodes.positions import Key
from pyspark_nsq.options import ReadOptions, parse_read, parse_time_ns
from pyspark_nsq.pipelines.exactly_once.outbox import is_fixed
from pyspark_nsq.pipelines.exactly_once.resume_guard import arrow_settings
from pyspark_nsq.pipelines.json_events.events import as_json
from pyspark_nsq.pipelines.lake.history import any_history
from pyspark_nsq.pipelines.lake.tables import add_catalog
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.batch_range import BOUNDS
from pyspark_nsq.pipelines.running.watch import Stop
from pyspark_nsq.pipelines.table.storage import Storage

EXAMPLES = """
  pumpline pipeline replay --nsqd 127.0.0.1:4151 --topic orders --to orders_again \\
      --since 2026-11-16T08:00:00Z --until 2026-11-16T09:00:00Z --rate 1000
  pumpline pipeline replay --nsqd 127.0.0.1:4151 --table tables/orders --to orders_again \\
      --where "event.city = 'Oslo'"
"""

STEP_ROWS = 200_000
PARTITIONS = 2  # of a step; fixed, so that a repeated step is cut the same way
STEP_S = 1.0  # duration of a step when there is a --rate
NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Offsets of one log, in a table or on a node."""

    topic: str
    node: str
    start: int
    end: int
    log: str = ""  # its id, if a node has it

    @property
    def key(self) -> Key:
        return self.topic, self.node


@dataclass(slots=True)
class ReplayPlan:
    """The contents of the state file. `done` counts steps, `rows` published messages."""

    id: str  # a hash of the command, and the time of its first start
    ranges: list[ReplayRange]
    step_rows: int
    done: int = 0
    rows: int = 0
    arrow: dict[str, str] = field(default_factory=dict)  # settings that cut a step
    selected: str = ""  # the directory of the rows, if they were written to files
    without: list[str] = field(default_factory=list)  # nodes that were missing when it was planned

    def steps(self) -> Iterator[ReplayRange]:
        """The steps that are not done."""
        first = self.done
        for whole in self.ranges:
            count = -(-(whole.end - whole.start) // self.step_rows)
            for number in range(first, count):
                start = whole.start + number * self.step_rows
                yield replace(whole, start=start, end=min(start + self.step_rows, whole.end))
            first = max(first - count, 0)

    def put_last(self, away: set[Key]) -> None:
        """Move what is not done of these ranges to the end."""
        if not away:
            return
        first, done, rest = self.done, [], []
        for whole in self.ranges:
            count = -(-(whole.end - whole.start) // self.step_rows)
            middle = min(whole.start + min(first, count) * self.step_rows, whole.end)
            first = max(first - count, 0)
            done += [replace(whole, end=middle)] if middle > whole.start else []
            rest += [replace(whole, start=middle)] if middle < whole.end else []
        self.ranges = done + sorted(rest, key=lambda part: part.key in away)

    def offsets(self) -> int:
        return sum(whole.end - whole.start for whole in self.ranges)

    def save(self, path: Path) -> None:
        beside = path.with_name(f".{path.name}.new")
        try:
            beside.write_text(json.dumps(asdict(self)))
            beside.replace(path)
        except OSError as error:
            raise NsqError(f"--state: {path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path, command: str) -> "ReplayPlan":
        """Raise NsqError if it is not a state file, or belongs to another command."""
        try:
            value = json.loads(path.read_text())
            plan = cls(**{**value, "ranges": [ReplayRange(**entry) for entry in value["ranges"]]})
        except OSError as error:
            raise NsqError(f"--state: {path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError):
            raise NsqError(f"--state: {path} is not the state of a replay") from None
        if not plan.id.startswith(f"{command}-"):
            raise NsqError(f"--state: {path} is of another replay; name another file, or delete it")
        return plan


@dataclass(frozen=True, slots=True)
class Replay:
    """The source of the rows: `table`, or the nodes if it is None."""

    spark: SparkSession
    options: dict[str, str]
    table: DataFrame | None
    where: str | None
    addresses: dict[Key, str] = field(default_factory=dict)  # of nodes, by topic and log

    def ranges(self) -> list[ReplayRange]:
        if self.table is not None:
            edges = self.table.groupBy("topic", "node").agg(
                F.min("offset").alias("first"), (F.max("offset") + 1).alias("end")
            )
            found = edges.sort("topic", "node").collect()
            return [ReplayRange(row.topic, row.node, row.first, row.end) for row in found]
        read = self._read()
        nodes = Nodes(read)
        try:
            survey = complete_survey(nodes, read)
            starts = offsets_at(read.starting, survey, nodes, read)
            ends = offsets_at(read.ending, survey, nodes, read)
        finally:
            nodes.close()
        return [
            ReplayRange(*key, starts[key], max(ends[key], starts[key]), survey.logs[key].log)
            for key in sorted(starts)
        ]

    def away(self, plan: ReplayPlan) -> dict[Key, int]:
        """How many offsets are to be published of logs that no node has: the node is away, or the
        topic was deleted there. A log that was created again is away if `withoutNode` names the
        node; else reading it is an error."""
        if self.table is not None:
            return {}
        logs, without = self._survey().logs, self._read().without
        states = logs.values()
        self.addresses.update({(state.topic, state.log): state.address for state in states})
        left = Counter[Key]()
        for step in plan.steps():
            is_created_again = step.key in logs and step.node not in without
            if (step.topic, step.log) not in self.addresses and not is_created_again:
                left[step.key] += step.end - step.start
        return left

    def missing(self) -> list[str]:
        """The nodes of `withoutNode` that do not answer."""
        if self.table is not None or not (without := self._read().without):
            return []
        names = self._survey().names
        answered = {*names, *(address.partition("://")[2] for address in names.values())}
        return sorted(without - answered)

    def required(self, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes that must not be missing."""
        return {*nodes} - self._read().without

    def _read(self) -> ReadOptions:
        return parse_read(self.options, streaming=False)

    def _survey(self) -> Survey:
        nodes = Nodes(self._read())
        try:
            return nodes.survey()
        finally:
            nodes.close()

    def is_fixed(self, ranges: list[ReplayRange]) -> bool:
        """Whether the condition chooses the same rows whenever it is asked."""
        if self.where is None or not ranges:
            return True
        return is_fixed(self._chosen(ranges[0]), self.where)

    def select(self, ranges: list[ReplayRange], path: str) -> "Replay":
        """Write the rows of all ranges to files, and replay those."""
        for number, whole in enumerate(ranges):
            rows = self._chosen(whole).select("topic", "node", "offset", "id", _body(self.table))
            rows.write.mode("overwrite" if number == 0 else "append").parquet(path)
        return self.selected(path)

    def selected(self, path: str) -> "Replay":
        schema = "topic STRING, node STRING, offset BIGINT, id STRING, body BINARY"
        return Replay(self.spark, {}, self.spark.read.schema(schema).parquet(path), None)

    def rows(self, step: ReplayRange) -> DataFrame:
        """The bodies of a step, always in the same order and partitions. They are sorted by id,
        too: a table has an offset twice if the topic was deleted and created again."""
        rows = self._chosen(step)
        ordered = rows.repartition(PARTITIONS, "offset").sortWithinPartitions("offset", "id")
        return ordered.select(_body(self.table))

    def _chosen(self, step: ReplayRange) -> DataFrame:
        if self.table is None:
            rows = self._live(step)
        else:
            mine = (F.col("topic") == step.topic) & (F.col("node") == step.node)
            rows = self.table.where(mine & F.col("offset").between(step.start, step.end - 1))
        if self.where is None:
            return rows
        if "body" in rows.columns:  # an archive may have dropped it
            rows = rows.withColumn("text", F.col("body").cast("string"))
        return rows.where(self.where)

    def _live(self, step: ReplayRange) -> DataFrame:
        """The rows of a step, from the node that has its log now; others are not asked."""
        own = {name: value for name, value in self.options.items() if name.lower() not in BOUNDS}
        own = {name: value for name, value in own.items() if name.lower() != "subscribepattern"}
        own["subscribe"] = step.topic
        if address := self.addresses.get((step.topic, step.log)):
            own = _only(own, address)
        read = parse_read(own, streaming=False)
        nodes = Nodes(read)
        try:
            logs = answered_survey(nodes, read).logs
        finally:
            nodes.close()
        state = next((found for found in logs.values() if found.log == step.log), None)
        if state is None:
            where = f"topic {step.topic} on {step.node}"
            raise DataLoss(
                f"{where} is gone, or was deleted and created again since it was planned; "
                f"{way_out([step.node])}"
            )
        reader = self.spark.read.format("nsq").options(**_only(own, state.address))
        for side, offset in (("starting", step.start), ("ending", step.end)):
            text = json.dumps({step.topic: {state.node: offset}})
            reader = reader.option(f"{side}Offsets", text)
        return reader.load()


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    group = parser.add_argument_group("what is replayed, and where to")
    group.add_argument("--table", metavar="DIR", help="of an archive, instead of the nodes' logs")
    add_catalog(group)
    group.add_argument("--since", metavar="TIME", help="published then or later")
    group.add_argument("--until", metavar="TIME", help="published before")
    group.add_argument("--from-offsets", metavar="JSON", help='{"orders": {"host:4150": 42}}')
    group.add_argument("--to-offsets", metavar="JSON", help="the end, in the same form")
    group.add_argument("--where", metavar="SQL", help="a condition on the columns")
    group.add_argument("--to", metavar="TOPIC", required=True)
    group.add_argument("--to-nsqd", metavar="ADDRESSES", help="HTTP addresses (default: --nsqd)")
    group.add_argument("--rate", type=int, metavar="N", help="messages a second at most")
    group.add_argument("--state", metavar="FILE", help="how far it is (default: replay-*.json)")
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    if arguments.rate is not None and arguments.rate < 1:
        raise BadOption("--rate must be at least 1")
    options = command.reading(arguments)
    target = command.writing(arguments, options)
    name = _name(arguments)
    path = Path(arguments.state or f"replay-{name}.json")
    spark = command.session(arguments, "replay")
    source = _source(spark, arguments, command.with_cores(spark, options))
    if path.exists():
        plan = ReplayPlan.load(path, name)
        if next(plan.steps(), None) is None:
            console.print(
                f"replay: nothing to publish: {path} says that all {plan.rows:,} messages were "
                f"published to {arguments.to} before{_left_out(plan.without)}; delete it to "
                "publish them again",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            if plan.selected:  # a kill may have come before they were deleted
                Storage(spark, plan.selected).delete("")
            return command.EXIT_OK
        said = f"{path}: {plan.done:,} steps were published before"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    else:
        rows = STEP_ROWS if arguments.rate is None else max(int(arguments.rate * STEP_S), 1)
        mark = f"{name}-{time.time_ns():x}"
        missing = source.missing()
        plan = ReplayPlan(mark, source.ranges(), rows, arrow=arrow_settings(spark), without=missing)
        if not source.is_fixed(plan.ranges):
            plan.selected = Storage(spark, f"{path}.rows").root
            plan.ranges = source.select(plan.ranges, plan.selected).ranges()
        plan.save(path)
    if plan.selected:
        source = source.selected(plan.selected)
    for setting, value in plan.arrow.items():
        spark.conf.set(setting, value)  # so that a repeated step is cut the same way
    away = source.away(plan)
    plan.put_last({*away})
    with Stop(interrupts=True) as stop:
        finished = publish(
            source, plan, target, path, away={*away}, rate=arguments.rate, stop=stop, on=console
        )
    if finished:
        _require_published(source, away)
    if finished and plan.selected:
        Storage(spark, plan.selected).delete("")
    nodes = sorted({*plan.without, *(node for _, node in away)})
    how = f"done{_left_out(nodes)}" if finished else "stopped; the same command goes on from here"
    console.print(
        f"replay: {plan.rows:,} messages published to {arguments.to}; {how}", soft_wrap=True
    )
    return command.EXIT_OK


def publish(
    source: Replay,
    plan: ReplayPlan,
    target: dict[str, str],
    path: Path,
    *,
    away: set[Key],
    rate: int | None,
    stop: Stop,
    on: Console,
) -> bool:
    """Publish the steps that are not done, until one is `away`; return False if it is stopped."""
    bar = Progress(
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("offsets, {task.fields[rows]:,} messages published"),
        TimeRemainingColumn(),
        console=on,
        disable=not on.is_terminal,
    )
    with bar:
        total = plan.offsets()
        before = total - sum(step.end - step.start for step in plan.steps())
        task = bar.add_task("replay", total=total, completed=before, rows=plan.rows)
        for number, step in enumerate(plan.steps(), plan.done):
            if stop.asked.is_set():
                return False
            if step.key in away:
                break
            began_s = time.monotonic()
            rows = source.rows(step).persist()
            count = rows.count()
            writer = rows.write.format("nsq").mode("append").options(**target)
            # The same for a step that is repeated, whatever its number is by then.
            writer.option("writeId", f"{plan.id}/{step.topic}/{step.node}/{step.start}").save()
            rows.unpersist()
            plan.done, plan.rows = number + 1, plan.rows + count
            plan.save(path)
            bar.update(task, advance=step.end - step.start, rows=plan.rows)
            if rate is not None:
                stop.asked.wait(max(began_s + count / rate - time.monotonic(), 0))
    return True


def _require_published(source: Replay, away: dict[Key, int]) -> None:
    """Raise NotAllRead if a node is away that `withoutNode` does not name."""
    left: dict[str, list[str]] = {}
    for (topic, node), offsets in sorted(away.items()):
        left.setdefault(node, []).append(f"{offsets:,} offsets of topic {topic} are left")
    if left and (nodes := sorted(source.required(left))):
        missing = {node: described(node, left[node]) for node in nodes}
        raise NotAllRead(f"not all is published: {sentence(missing)}")


def _left_out(nodes: list[str]) -> str:
    return f" without {', '.join(nodes)}" if nodes else ""


def _only(options: dict[str, str], address: str) -> dict[str, str]:
    """The options to read from one node."""
    others = ("nsqd", "lookupd")
    return {k: v for k, v in options.items() if k.lower() not in others} | {"nsqd": address}


def _source(spark: SparkSession, arguments: Namespace, options: dict[str, str]) -> Replay:
    bounds = {
        "startingTimestamp": arguments.since,
        "endingTimestamp": arguments.until,
        "startingOffsets": arguments.from_offsets,
        "endingOffsets": arguments.to_offsets,
    }
    if arguments.table is None:
        given = {name: value for name, value in bounds.items() if value}
        return Replay(spark, {**options, **given}, None, arguments.where)
    if arguments.from_offsets or arguments.to_offsets:
        raise BadOption("offsets of a table go into --where, as in offset >= 42")
    rows = any_history(spark, arguments.table, arguments.catalog).rows()
    if arguments.topic:
        topics = [name.strip() for name in arguments.topic.split(",")]
        rows = rows.where(F.col("topic").isin(topics))
    if arguments.topic_pattern:
        rows = rows.where(F.col("topic").rlike(f"^(?:{arguments.topic_pattern})$"))
    published_us = F.unix_micros("timestamp")
    if arguments.since:
        rows = rows.where(published_us >= parse_time_ns("--since", arguments.since) // NS_PER_US)
    if arguments.until:
        rows = rows.where(published_us < parse_time_ns("--until", arguments.until) // NS_PER_US)
    return Replay(spark, options, rows, arguments.where)


def _body(table: DataFrame | None) -> Column:
    """What is published of a row. An archive may have dropped the body: its event says the same,
    with whole numbers without a fraction, as most are sent."""
    if table is None or "event" not in table.columns:
        return F.col("body")
    written = F.to_json("event", {"ignoreNullFields": "true"})
    if "body" not in table.columns:
        return as_json(written).alias("body")
    return F.coalesce("body", as_json(written)).alias("body")


def _name(arguments: Namespace) -> str:
    """A hash of the command, without the flags that do not change what is published."""
    how = ("rate", "state", "master", "conf", "option", "access_token_file", "without_node")
    said = {name: value for name, value in vars(arguments).items() if name not in how}
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=4).hexdigest()


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
