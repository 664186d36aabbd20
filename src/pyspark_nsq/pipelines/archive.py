"""Archives topics in a Parquet table by topic, date and hour, with every message exactly once.

JSON bodies become the column `event`, by a schema that is given or inferred; new fields become new
columns. Messages that do not parse go to a quarantine table, with the reason. The body is kept as
it was published. With --dedupe, only the first of the messages with the same key is kept.
"""

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from socket import gethostname
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from rich.console import Console

from pumpline.core.text.names import NAME_CHARS_MAX
from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.lake.lake import DELTA, ICEBERG, LakeTable
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.unread import require_all_read, survey_of
from pyspark_nsq.pipelines.running.watch import Stop, Watch
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES
from pyspark_nsq.pipelines.table.layout import (
    CHECKPOINT,
    PARTITION_BY,
    ArchiveSettings,
    has_key,
    key_of,
    placed,
)
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
DUPLICATES = "numDroppedDuplicateRows"  # the name in Spark's progress
HOLD = "hold.txt"  # the file in the checkpoint with the name of the hold
HOLD_BEFORE = "archive"  # the hold of every archive, in checkpoints without that file
HOLD_MARK_BYTES = 4


class Table(Protocol):
    compacted_files: int

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
    schema: StructType | None = None  # of the events; None to infer it
    hints: StructType = field(default_factory=StructType)  # types for an inferred schema
    is_json: bool = True
    keeps_body: bool = True
    dedupe: str | None = None  # a JSON path
    watermark: str = "1 hour"
    quarantined: int = 0
    keyless: int = 0  # rows in batches before the first message with the key of --dedupe
    has_key: bool = False  # whether a message had it
    hold: str | None = ""  # the name of the hold; "" for no hold, None for a name of its own

    def start(self, options: dict[str, str], *, every: str, once: bool) -> StreamingQuery:
        self.checkpoint = Storage(self.spark, self.checkpoint).root  # absolute, with its scheme
        query_id = checkpoint_id(self.spark, self.checkpoint)
        self.table.claim(self.checkpoint, query_id)
        self.quarantine.claim(self.checkpoint, query_id)
        if self.schema is not None:
            clash = events.clash(self.table.event_schema(), self.schema)
            if clash is not None:
                raise BadOption(f"--schema: {clash}: a column keeps its type; name another table")
        self.table.keep_settings(json.dumps(asdict(self._settings())))
        if self.hold is None:
            self.hold = kept_hold(Storage(self.spark, self.checkpoint), is_new=query_id is None)
        if self.hold:
            options = {**options, "hold": self.hold}
        messages = self._first_only(command.stream(self.spark, options))
        writer = messages.writeStream.foreachBatch(self.add).queryName("archive")
        writer = writer.option("checkpointLocation", self.checkpoint)
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
        return writer.start()

    def add(self, messages: DataFrame, batch: int) -> None:
        """Add a batch of messages to the table; a repeated batch changes nothing."""
        query_id = str(checkpoint_id(self.spark, self.checkpoint))
        whence = {"query_id": query_id, "checkpoint": self.checkpoint}
        rows = placed(messages)
        if not self.is_json:
            self._add_raw(batch, rows, whence)
            return
        infers = self.schema is None
        known = events.merged(self.table.event_schema(), self.schema or self.hints)
        checked = events.checked(rows, known, grows=infers)
        if infers:
            checked = checked.persist()  # read twice: to infer the schema, and to parse
        schema = self._schema(checked, known, batch)
        parsed = checked
        if schema != known:  # two messages may have new fields that differ only in case
            parsed = events.checked(checked, schema, grows=infers)
        both = events.parsed(parsed, schema).persist()
        try:
            good, bad = events.events(both), events.others(both, schema)
            bad_count = bad.count()
            self.quarantine.append(batch, bad if bad_count else None, **whence)
            self.table.append(batch, good if self.keeps_body else good.drop("body"), **whence)
            self.quarantined += bad_count
            self._look_for_key(both)
        finally:
            both.unpersist()
            checked.unpersist()

    def _add_raw(self, batch: int, rows: DataFrame, whence: dict[str, str]) -> None:
        if self.dedupe is None:
            self.table.append(batch, rows, **whence)
            return
        # Count even if the table has the batch: only reading updates the state of --dedupe.
        rows = rows.persist()
        try:
            rows.count()
            self.table.append(batch, rows, **whence)
            self._look_for_key(rows)
        finally:
            rows.unpersist()

    def _look_for_key(self, rows: DataFrame) -> None:
        if self.dedupe is not None and not self.has_key:
            self.has_key = not rows.where(has_key(self.dedupe)).isEmpty()
            self.keyless += 0 if self.has_key else rows.count()

    def _settings(self) -> ArchiveSettings:
        quarantine = self.quarantine
        return ArchiveSettings(
            is_json=self.is_json,
            grows=self.schema is None,
            keeps_body=self.keeps_body,
            dedupe=self.dedupe,
            watermark=self.watermark,
            quarantine=quarantine.storage.root if isinstance(quarantine, ParquetTable) else "",
        )

    def note(self) -> str:
        """What to show beside the progress."""
        parts = [f"{self.quarantined:,} quarantined"] if self.is_json else []
        if self.keyless and not self.has_key:
            parts.append(f"no message has the key {self.dedupe}: none is left out")
        if self.table.compacted_files:
            parts.append(f"{self.table.compacted_files:,} small files put together")
        return ", ".join(parts)

    def _schema(self, checked: DataFrame, known: StructType, batch: int) -> StructType:
        wanted = known
        if self.schema is None:
            wanted = events.merged(known, events.inferred(self.spark, checked))
        if wanted != self.table.event_schema():
            self.table.keep_event_schema(batch, wanted)
        return wanted

    def _first_only(self, messages: DataFrame) -> DataFrame:
        if self.dedupe is None:
            return messages
        # The watermark is on the time of reading, not of publishing: messages of a node that was
        # away come late, and would be dropped.
        keyed = messages.withColumn("_key", key_of(self.dedupe)).withColumn(
            "_read_at", F.current_timestamp()
        )
        return keyed.withWatermark("_read_at", self.watermark).dropDuplicatesWithinWatermark(
            ["topic", "_key"]
        )


def kept_hold(checkpoint: Storage, *, is_new: bool) -> str:
    """The name of an archive's hold. It is kept in the checkpoint, so that it stays the same when
    the checkpoint is moved. An older checkpoint without the file uses HOLD_BEFORE."""
    name = checkpoint.read_text(HOLD)
    if name is None:
        name = hold_of(checkpoint.root) if is_new else HOLD_BEFORE
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
    group.add_argument("--table", required=True, help="its directory (Iceberg: its name)")
    group.add_argument("--quarantine", help="of what does not parse (default: TABLE-quarantine)")
    group.add_argument("--format", choices=(PARQUET, DELTA, ICEBERG), default=PARQUET)
    group.add_argument("--body", choices=("json", "raw"), default="json", help="what bodies are")
    group.add_argument("--schema", metavar="DDL", help="of the JSON: 'id BIGINT, city STRING'")
    group.add_argument("--hints", metavar="DDL", help="types of some fields, the rest is inferred")
    group.add_argument("--drop-body", action="store_true", help="keep the event alone")
    group.add_argument("--dedupe", metavar="KEY", help="JSON path of the key: order_id, $.meta.id")
    group.add_argument(
        "--watermark", type=command.duration, default="1 hour", help="a key is known for so long"
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
    if arguments.format == ICEBERG and not arguments.checkpoint:
        raise BadOption("an Iceberg table has no directory for it: name a --checkpoint")
    options = command.streaming(arguments)
    survey = survey_of(options) if arguments.once else None
    spark = command.session(arguments, "archive")
    has_hold = any(name.lower() == "hold" for name in options)
    archive = Archive(
        spark=spark,
        table=_table(spark, arguments, arguments.table),
        quarantine=_table(spark, arguments, quarantine_of(arguments)),
        checkpoint=arguments.checkpoint or f"{arguments.table}/{CHECKPOINT}",
        schema=events.schema_from_ddl(arguments.schema) if arguments.schema else None,
        hints=events.schema_from_ddl(arguments.hints) if arguments.hints else StructType(),
        is_json=arguments.body == "json",
        keeps_body=not arguments.drop_body,
        dedupe=arguments.dedupe,
        watermark=arguments.watermark,
        hold="" if has_hold else arguments.hold,
    )
    own = arguments.table if arguments.format == PARQUET else archive.checkpoint
    with Stop() as stop, sole_writer(Storage(spark, own)):
        query = archive.start(options, every=arguments.every, once=arguments.once)
        if archive.hold:
            console.print(f"archive: hold {archive.hold}", highlight=False, soft_wrap=True)
        Watch("archive", console, note=archive.note).follow(query, stop)
    if survey is not None and not stop.asked.is_set():
        require_all_read(survey, Storage(spark, archive.checkpoint))
    return command.EXIT_OK


def quarantine_of(arguments: Namespace) -> str:
    joint = "_" if arguments.format == ICEBERG else "-"
    return str(arguments.quarantine or f"{arguments.table.rstrip('/')}{joint}quarantine")


def _table(spark: SparkSession, arguments: Namespace, name: str) -> Table:
    if arguments.format == PARQUET:
        return ParquetTable(spark, name, PARTITION_BY, file_bytes=arguments.file_bytes)
    return LakeTable(spark, arguments.format, name, PARTITION_BY)


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
