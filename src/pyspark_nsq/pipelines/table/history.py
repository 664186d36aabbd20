"""Reads an archived table and the live topic behind it as one, with every row once.

The archive's checkpoint says at which offset of each log the table's newest batch ends. The rows of
the table are read from the files of that batch's snapshot, later rows from the nodes, from exactly
those offsets; so no row is missing or there twice, even while the archive runs. A log that the
archive has not read yet is read from its beginning. A node that the archive has read from must
answer, unless `withoutNode` names it.

The live part is what the archive would make of it now: rows that do not fit the schema go to the
quarantine. If the archive drops duplicates, so does the live part, by the keys that the archive has
kept.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegerType, StringType, StructField, StructType

from pyspark_nsq.columns import SPARK_TYPES
from pyspark_nsq.errors import DataLoss, NsqError
from pyspark_nsq.nodes.bounds import answered_survey, gone_back
from pyspark_nsq.nodes.nodes import Nodes, Survey
from pyspark_nsq.nodes.positions import Positions, from_json
from pyspark_nsq.options import OFFSET_EARLIEST, parse_read
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.json_events.fitting import LEAVE_OUT
from pyspark_nsq.pipelines.json_events.keys import path_of
from pyspark_nsq.pipelines.table import manifest
from pyspark_nsq.pipelines.table.layout import (
    CHECKPOINT,
    NULL_TOPIC,
    PARTITION_BY,
    ArchiveSettings,
    placed,
)
from pyspark_nsq.pipelines.table.seen_keys import SeenKeys
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import OWNER, ParquetTable

_TOPIC = re.compile(r"/topic=([^/]+)/")  # in the path of a file; topic names need no escaping
_PLACE: dict[str, DataType] = {
    "topic": StringType(),
    "date": DateType(),
    "hour": IntegerType(),
}


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table at one moment."""

    spark: SparkSession
    path: str
    paths: tuple[str, ...]

    @property
    def topics(self) -> Collection[str]:
        return {found[1] for path in self.paths if (found := _TOPIC.search(path))}

    def rows(self, schema: StructType) -> DataFrame:
        if not self.paths:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.path)
        topic = F.coalesce("topic", F.lit(NULL_TOPIC))
        return reader.parquet(*self.paths).withColumn("topic", topic)


@dataclass(frozen=True, slots=True)
class History:
    """A table and its quarantine at one moment."""

    spark: SparkSession
    table: Files
    quarantine: Files
    positions: Positions  # where the live part begins, by log
    event_schema: StructType
    settings: ArchiveSettings
    checkpoint: str
    batch: int  # the newest one of the table

    @property
    def topics(self) -> list[str]:
        """The topics that the archive reads, and those of which only the table is left."""
        read = {topic for topic, _ in self.positions}
        return sorted({*read, *self.table.topics, *self.quarantine.topics})

    def rows(self) -> DataFrame:
        """The rows of the table."""
        return self.table.rows(self._schema())

    def quarantined(self) -> DataFrame:
        """The rows of the quarantine."""
        return self.quarantine.rows(self._quarantine_schema())

    def live(self, options: dict[str, str], topic: str) -> DataFrame:
        """The rows of a topic that only the nodes have, in the columns of the table."""
        rows = self._beyond(options, topic)
        dedupe = self.settings.dedupe
        if self.settings.is_json:
            rows = events.events(self._parsed(rows))
        elif dedupe is not None:
            rows = events.with_key(rows, path_of(dedupe))
        if dedupe is not None:
            seen = SeenKeys(self.spark, self.checkpoint, self.settings.watermark)
            rows = seen.fresh(rows, self.batch + 1)
        return rows.select(*self._schema().fieldNames())

    def live_quarantined(self, options: dict[str, str], topic: str) -> DataFrame:
        """The rows of a topic that only the nodes have, and that do not fit the schema."""
        rows = self._beyond(options, topic)
        rows = events.others(self._parsed(rows))
        return rows.select(*self._quarantine_schema().fieldNames())

    def _parsed(self, rows: DataFrame) -> DataFrame:
        """New fields are left out: they become columns when the archive sees them."""
        dedupe = self.settings.dedupe
        key = None if dedupe is None else path_of(dedupe)
        checked = events.checked(rows, self.event_schema, unknown=LEAVE_OUT, key=key)
        return events.parsed(checked, self.event_schema)

    def _beyond(self, options: dict[str, str], topic: str) -> DataFrame:
        # Also what is older than a startingTimestamp: --dedupe compares the rows with it.
        names = ("subscribe", "startingtimestamp")
        own = {name: value for name, value in options.items() if name.lower() not in names}
        own["subscribe"] = topic
        starts = self._starts(own)
        if not starts:  # no node has the topic any more, only the table
            nothing = self.spark.createDataFrame([], StructType(_message_fields()))
            return placed(nothing)
        own["startingOffsets"] = json.dumps(starts)
        return placed(self.spark.read.format("nsq").options(**own).load())

    def _starts(self, options: dict[str, str]) -> dict[str, dict[str, int]]:
        read = parse_read(options, streaming=False)
        nodes = Nodes(read)
        try:
            survey = answered_survey(nodes, read, self.positions)
            self._require_same_logs(survey, nodes)
        finally:
            nodes.close()
        # By the ids of logs: a node may have another address than when it was archived.
        reached = {(topic, place.log): place.offset for (topic, _), place in self.positions.items()}
        starts: dict[str, dict[str, int]] = {}
        for (topic, node), state in survey.logs.items():
            # Even if the node no longer has that offset: rows that are lost must be an error.
            offset = reached.get((topic, state.log), OFFSET_EARLIEST)
            starts.setdefault(topic, {})[node] = offset
        return starts

    def _require_same_logs(self, survey: Survey, nodes: Nodes) -> None:
        places = {(topic, place.log): place for (topic, _), place in self.positions.items()}
        for state in survey.logs.values():
            place = places.get((state.topic, state.log))
            if place is not None and gone_back(place, state, nodes):
                raise DataLoss(
                    f"topic {state.topic} on {state.node} went back to an older state, as of a "
                    "backup, after it was archived: ask the table alone, without --nsqd"
                )

    def _schema(self) -> StructType:
        if self.settings.is_quarantine:
            return self._quarantine_schema()
        fields = _message_fields()
        if not self.settings.keeps_body:
            fields = [field for field in fields if field.name != "body"]
        if self.event_schema.fields:
            fields.append(StructField("event", self.event_schema))
        return _with_place(fields)

    def _quarantine_schema(self) -> StructType:
        return _with_place([*_message_fields(), StructField("reason", StringType())])


def _message_fields() -> list[StructField]:
    return [StructField(name, kind) for name, kind in SPARK_TYPES.items()]


def _with_place(fields: list[StructField]) -> StructType:
    own = [field for field in fields if field.name not in _PLACE]
    return StructType(own + [StructField(name, _PLACE[name]) for name in PARTITION_BY])


def history(spark: SparkSession, path: str) -> History:
    """The table of an archive pipeline and its quarantine, as they are now."""
    table = ParquetTable(spark, path, PARTITION_BY)
    owner = table.storage.read_text(OWNER)
    snapshot = manifest.snapshot(table.storage)
    if owner is None or snapshot.batch < 0:
        raise NsqError(f"{path} is not a table that `pumpline pipeline archive` has written to")
    manifest.require_here(table.storage, snapshot.files)
    settings = ArchiveSettings.from_json(table.settings())
    checkpoint = checkpoint_of(spark, path, json.loads(owner)["checkpoint"])
    return History(
        spark,
        Files(spark, path, tuple(file.path for file in snapshot.files)),
        _quarantine(spark, path, settings, snapshot.batch),
        positions_of(checkpoint, snapshot.batch),
        table.event_schema(),
        settings,
        checkpoint.root,
        snapshot.batch,
    )


def _quarantine(spark: SparkSession, path: str, settings: ArchiveSettings, batch: int) -> Files:
    """The quarantine after the same batch: it may be one batch ahead of the table."""
    found = settings.quarantine
    if not found or not Storage(spark, found).exists():
        found = f"{path.rstrip('/')}-quarantine"  # both may have been moved
    storage = Storage(spark, found)
    if manifest.newest_batch(storage) < batch:
        return Files(spark, found, ())
    files = manifest.snapshot(storage, batch).files
    return Files(spark, found, tuple(file.path for file in files))


def checkpoint_of(spark: SparkSession, path: str, named: str) -> Storage:
    """The checkpoint where the owner says, or in the table, if both were moved."""
    storage = Storage(spark, named)
    if storage.exists("offsets"):
        return storage
    return Storage(spark, f"{path.rstrip('/')}/{CHECKPOINT}")


def positions_of(checkpoint: Storage, batch: int) -> Positions:
    """Where a batch of a stream ended, from Spark's checkpoint."""
    text = checkpoint.read_text(f"offsets/{batch}")
    if text is None:
        raise NsqError(f"{checkpoint.path('offsets')} says nothing about batch {batch}")
    return from_json(json.loads(text.splitlines()[-1]))
