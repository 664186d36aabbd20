"""Archives topics in a table by topic, date and hour, with every message exactly once.

The table is of Parquet files, or a Delta or an Iceberg table.

JSON bodies become the column `event`, by a schema that is given or inferred; new fields become new
columns. Messages that do not parse go to a quarantine table, with the reason. The body is kept as
it was published. With --dedupe, only the first of the messages with the same key is kept.
"""

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from socket import gethostname
from typing import Protocol, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType
from rich.console import Console

from pumpline.core.text.names import NAME_CHARS_MAX
from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.exactly_once.batch_schema import BatchSchema, kept
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.json_events.events import KEY
from pyspark_nsq.pipelines.json_events.fitting import LEARN, LEAVE_OUT, REFUSE
from pyspark_nsq.pipelines.json_events.keys import Path, path_of
from pyspark_nsq.pipelines.lake.formats import DELTA, ICEBERG, require
from pyspark_nsq.pipelines.lake.tables import add_catalog, delta_table, iceberg_table
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.batch_range import fixed_start
from pyspark_nsq.pipelines.running.last_hold import commit_last_batch
from pyspark_nsq.pipelines.running.watch import Stop, Watch
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES
from pyspark_nsq.pipelines.table.layout import (
    CHECKPOINT,
    PARTITION_BY,
    ArchiveSettings,
    placed,
)
from pyspark_nsq.pipelines.table.seen_keys import SeenKeys
from pyspark_nsq.pipelines.table.sole_writer import sole_writer
from pyspark_nsq.pipelines.table.storage import Storage, checkpoint_id
from pyspark_nsq.pipelines.table.table import ParquetTable

EXAMPLES = """
  pumpline pipeline archive --lookupd 127.0.0.1:4161 --topic orders --table tables/orders
  pumpline pipeline archive --nsqd 127.0.0.1:4151 --topic-pattern '.*' --table tables/all --once
  pumpline pipeline archive --nsqd 127.0.0.1:4151 --topic orders --table tables/distinct_orders \\
      --schema 'order_id BIGINT, total DOUBLE' --dedupe order_id --watermark '1 hour'
"""

PARQUET = "parquet"
HOLD = "hold.txt"  # the file in the checkpoint with the name of the hold
HOLD_MARK_BYTES = 4


class Table(Protocol):
    compacted_files: int

    @property
    def storage(self) -> Storage | None: ...
    def takes(self, there: DataType, news: DataType) -> bool: ...
    def claim(self, checkpoint: str, query_id: str | None) -> None: ...
    def keep_settings(self, text: str) -> None: ...
    def event_schema(self) -> StructType: ...
    def keep_event_schema(self, batch: int, schema: StructType) -> None: ...
    def append(
        self, batch: int, rows: DataFrame | None, *, query_id: str, checkpoint: str
    ) -> None: ...


@dataclass(slots=True, kw_only=True)
class Archive:
    """One table and its quarantine, and how a batch of messages gets into them."""

    spark: SparkSession
    table: Table
    quarantine: Table
    checkpoint: str
    quarantine_name: str = ""  # in a catalog
    schema: StructType | None = None  # of the events; None to infer it
    hints: StructType = field(default_factory=StructType)  # types for an inferred schema
    is_json: bool = True
    keeps_body: bool = True
    dedupe: str | None = None  # a JSON path
    watermark: str = "1 hour"
    quarantined: int = 0
    repeats: int = 0  # rows left out by --dedupe
    keyless: int = 0  # rows in batches before the first message with the key of --dedupe
    has_key: bool = False  # whether a message had it
    hold: str | None = ""  # the name of the hold; "" for no hold, None for a name of its own

    def start(self, options: dict[str, str], *, every: str, once: bool) -> StreamingQuery:
        self.checkpoint = Storage(self.spark, self.checkpoint).root  # absolute, with its scheme
        query_id = checkpoint_id(self.spark, self.checkpoint)
        self.table.claim(self.checkpoint, query_id)
        self.quarantine.claim(self.checkpoint, query_id)
        if self.schema is not None:
            clash = events.clash(self.table.event_schema(), self.schema, self.table.takes)
            if clash is not None:
                raise BadOption(f"--schema: {clash}: a column keeps its type; name another table")
        settings = self._settings()
        self.table.keep_settings(json.dumps(asdict(settings)))
        self.quarantine.keep_settings(json.dumps(asdict(replace(settings, is_quarantine=True))))
        if self.hold is None:
            self.hold = kept_hold(Storage(self.spark, self.checkpoint))
        options = {**options, **self._description(options), **self.holding()}
        begin = fixed_start(options, Storage(self.spark, self.checkpoint))
        begin.keep(Storage(self.spark, self.checkpoint))
        messages = command.stream(self.spark, begin.options)
        writer = messages.writeStream.foreachBatch(self.add).queryName("archive")
        writer = writer.option("checkpointLocation", self.checkpoint)
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
        return writer.start()

    def holding(self) -> dict[str, str]:
        """The option that names the hold, unless there is none, or another option names it."""
        return {"hold": self.hold} if self.hold else {}

    def _description(self, options: dict[str, str]) -> dict[str, str]:
        """Of the hold: whose it is, for people who see that it pins a disk."""
        if not self.hold or "holddescription" in map(str.lower, options):
            return {}
        return {"holdDescription": f"pumpline pipeline archive, checkpoint {self.checkpoint}"}

    def add(self, messages: DataFrame, batch: int) -> None:
        """Add a batch of messages to the table; a repeated batch changes nothing."""
        query_id = str(checkpoint_id(self.spark, self.checkpoint))
        whence = {"query_id": query_id, "checkpoint": self.checkpoint}
        rows = placed(messages)
        with Persisted() as persisted:
            if self.is_json:
                both = persisted.hold(self._judged(rows, batch, persisted))
                bad = events.others(both)
                bad_count = bad.count()
                self.quarantine.append(batch, bad if bad_count else None, **whence)
                self.quarantined += bad_count
                rows = events.events(both)
            if self.dedupe is not None:
                rows = self._first_only(rows, batch, persisted)
            if not self.keeps_body and self.is_json:
                rows = rows.drop("body")
            self.table.append(batch, rows.drop(KEY), **whence)

    def _judged(self, rows: DataFrame, batch: int, persisted: "Persisted") -> DataFrame:
        """The rows with `event`, or with the reason why there is none. A batch that comes again is
        judged as before: its quarantine may have been written."""
        checkpoint = Storage(self.spark, self.checkpoint)
        decided = kept(checkpoint, batch)
        known, checked = StructType(), rows
        if decided is None:
            known = events.merged(
                self.table.event_schema(), self.schema or self.hints, self.table.takes
            )
            decided = BatchSchema(batch, LEAVE_OUT, known)
            if self.schema is None:  # read twice: to infer the schema, and to parse
                learned = events.checked(rows, known, unknown=LEARN, key=self._key)
                checked = persisted.hold(learned)
                schema = events.grown(checked, known, whole=events.WHOLE_IN_TABLE)
                decided = BatchSchema(batch, REFUSE, schema)
            decided.keep(checkpoint)
        schema = decided.schema
        if schema != self.table.event_schema():
            self.table.keep_event_schema(batch, schema)
        if checked is rows or schema != known:  # now that it is decided, all are judged by it
            checked = events.checked(checked, schema, unknown=decided.unknown, key=self._key)
        return events.parsed(checked, schema)

    def _first_only(self, rows: DataFrame, batch: int, persisted: "Persisted") -> DataFrame:
        """The rows whose key is not known yet."""
        assert self._key is not None
        rows = persisted.hold(rows if self.is_json else events.with_key(rows, self._key))
        seen = SeenKeys(self.spark, self.checkpoint, self.watermark)
        seen.put_together(batch)
        fresh = persisted.hold(seen.fresh(rows, batch))
        seen.keep(fresh, batch)
        count = rows.count()
        self.repeats += count - fresh.count()
        if not self.has_key:
            self.has_key = not rows.where(f"{KEY} IS NOT NULL").isEmpty()
            self.keyless += 0 if self.has_key else count
        return fresh

    @property
    def _key(self) -> Path | None:
        return None if self.dedupe is None else path_of(self.dedupe)

    def _settings(self) -> ArchiveSettings:
        quarantine = self.quarantine.storage
        return ArchiveSettings(
            is_json=self.is_json,
            grows=self.schema is None,
            keeps_body=self.keeps_body,
            dedupe=self.dedupe,
            watermark=self.watermark,
            quarantine=quarantine.root if quarantine else self.quarantine_name,
        )

    def note(self) -> str:
        """What to show beside the progress."""
        parts = [f"{self.quarantined:,} quarantined"] if self.is_json else []
        if self.repeats:
            parts.append(f"{self.repeats:,} repeats left out")
        if self.keyless and not self.has_key:
            parts.append(f"no message has the key {self.dedupe}: none is left out")
        if self.table.compacted_files:
            parts.append(f"{self.table.compacted_files:,} small files put together")
        return ", ".join(parts)


class Persisted:
    """Frames that are computed once, as long as it is entered."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._frames:
            frame.unpersist()

    def hold(self, frame: DataFrame) -> DataFrame:
        self._frames.append(frame.persist())
        return frame


def kept_hold(checkpoint: Storage) -> str:
    """The name of an archive's hold. It is kept in the checkpoint, so that it stays the same when
    the checkpoint is moved."""
    name = checkpoint.read_text(HOLD)
    if name is None:
        name = hold_of(checkpoint.root)
        checkpoint.write_text(HOLD, name)
    return name


def hold_of(checkpoint: str) -> str:
    """A name that is unique to the checkpoint, and contains the name of the table."""
    directory = checkpoint.rstrip("/").removesuffix(f"/{CHECKPOINT}").rpartition("/")[2]
    # A local path may exist on other machines, too, so the host is part of it.
    where = f"{gethostname()} {checkpoint}" if checkpoint.startswith("file:") else checkpoint
    mark = blake2b(where.encode(), digest_size=HOLD_MARK_BYTES).hexdigest()
    room = NAME_CHARS_MAX - len(f"archive--{mark}")
    return f"archive-{re.sub(r'[^.a-zA-Z0-9_-]', '_', directory)[:room]}-{mark}"


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    group = parser.add_argument_group("the table")
    group.add_argument("--table", required=True, help="its directory, or its name in --catalog")
    group.add_argument("--quarantine", help="of what does not parse (default: TABLE-quarantine)")
    group.add_argument("--format", choices=(PARQUET, DELTA, ICEBERG), default=PARQUET)
    add_catalog(group)
    group.add_argument("--body", choices=("json", "raw"), default="json", help="what bodies are")
    group.add_argument("--schema", metavar="DDL", help="of the JSON: 'id BIGINT, city STRING'")
    group.add_argument("--hints", metavar="DDL", help="types of some fields, the rest is inferred")
    group.add_argument("--drop-body", action="store_true", help="keep the event alone")
    group.add_argument("--dedupe", metavar="KEY", help="JSON path of the key: order_id, $.meta.id")
    group.add_argument(
        "--watermark",
        type=command.duration,
        default="1 hour",
        help="a key is known until a message was published so much later (default: %(default)s)",
    )
    group.add_argument(
        "--hold", help="its name among the channels; '' for none (default: one of this table's own)"
    )
    group.add_argument(
        "--file-bytes",
        metavar="N",
        type=int,
        default=FILE_BYTES,
        help="smaller files are put together (default: %(default)s)",
    )
    command.add_streaming(parser, every="10 seconds")
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    if arguments.schema and arguments.hints:
        raise BadOption("--schema says all there is; --hints is for an inferred schema")
    require(arguments.format)
    if arguments.catalog and arguments.format != ICEBERG:
        raise BadOption("--catalog is for --format iceberg")
    if arguments.catalog and not arguments.checkpoint:
        raise BadOption("a table in a --catalog has no directory for it: name a --checkpoint")
    if arguments.dedupe:
        path_of(arguments.dedupe)
    options = command.streaming(arguments)
    spark = command.session(arguments, "archive")
    options = command.with_cores(spark, options)
    has_hold = any(name.lower() == "hold" for name in options)
    archive = Archive(
        spark=spark,
        table=_table(spark, arguments, arguments.table),
        quarantine=_table(spark, arguments, quarantine_of(arguments)),
        quarantine_name=quarantine_of(arguments),
        checkpoint=arguments.checkpoint or f"{arguments.table}/{CHECKPOINT}",
        schema=events.schema_from_ddl(arguments.schema) if arguments.schema else None,
        hints=events.schema_from_ddl(arguments.hints) if arguments.hints else StructType(),
        is_json=arguments.body == "json",
        keeps_body=not arguments.drop_body,
        dedupe=arguments.dedupe,
        watermark=arguments.watermark,
        hold="" if has_hold else arguments.hold,
    )
    own = archive.checkpoint if arguments.catalog else arguments.table
    with Stop() as stop, sole_writer(Storage(spark, own)):
        query = archive.start(options, every=arguments.every, once=arguments.once)
        if archive.hold:
            console.print(f"archive: hold {archive.hold}", highlight=False, soft_wrap=True)
        watch = Watch("archive", console, note=archive.note, without=arguments.without_node)
        watch.follow(query, stop)
        commit_last_batch({**options, **archive.holding()}, Storage(spark, archive.checkpoint))
    return command.EXIT_OK


def quarantine_of(arguments: Namespace) -> str:
    joint = "_" if arguments.catalog else "-"
    return str(arguments.quarantine or f"{arguments.table.rstrip('/')}{joint}quarantine")


def _table(spark: SparkSession, arguments: Namespace, name: str) -> Table:
    if arguments.format == PARQUET:
        return ParquetTable(spark, name, PARTITION_BY, file_bytes=arguments.file_bytes)
    if arguments.format == DELTA:
        return delta_table(spark, name, file_bytes=arguments.file_bytes)
    return iceberg_table(spark, name, arguments.catalog, file_bytes=arguments.file_bytes)


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
