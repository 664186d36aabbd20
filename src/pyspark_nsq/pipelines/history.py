"""An archived table and the live topic behind it, as one: every row once.

The archive's checkpoint says up to which offset of each log the table's newest batch goes. What the
table has is read from the files of exactly that batch's snapshot, what comes after from the nodes,
from exactly those offsets; so no row is missing and none is there twice, also while the archive
goes on. A log that the archive has not seen is read from its beginning.
"""

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegerType, StringType, StructField, StructType

from pyspark_nsq.bounds import complete_survey
from pyspark_nsq.columns import SPARK_TYPES
from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import OFFSET_EARLIEST, parse_read
from pyspark_nsq.pipelines import events, manifest
from pyspark_nsq.pipelines.archive import PARTITION_BY
from pyspark_nsq.pipelines.storage import Storage
from pyspark_nsq.pipelines.table import OWNER, ParquetTable
from pyspark_nsq.positions import Positions, from_json

_PLACE: dict[str, DataType] = {
    "topic": StringType(),
    "date": DateType(),
    "hour": IntegerType(),
}


@dataclass(frozen=True, slots=True)
class History:
    """A table at one moment."""

    spark: SparkSession
    path: str
    files: tuple[str, ...]
    positions: Positions  # where the live part begins
    event_schema: StructType

    def rows(self) -> DataFrame:
        """What is in the table."""
        schema = self._schema()
        if not self.files:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", self.path)
        return reader.parquet(*self.files)

    def live(self, options: dict[str, str]) -> DataFrame:
        """What the nodes have beyond it, in the same columns."""
        starts = json.dumps(self._starts(options))
        reader = self.spark.read.format("nsq").options(**options).option("startingOffsets", starts)
        rows = reader.load().withColumn("date", F.to_date("timestamp"))
        rows = rows.withColumn("hour", F.hour("timestamp"))
        if self.event_schema.fields:
            rows = events.events(events.parsed(rows, self.event_schema))
        return rows.select(*self._schema().fieldNames())

    def _starts(self, options: dict[str, str]) -> dict[str, dict[str, int]]:
        read = parse_read(options, streaming=False)
        nodes = Nodes(read)
        try:
            survey = complete_survey(nodes, read)
        finally:
            nodes.close()
        starts: dict[str, dict[str, int]] = {}
        for (topic, node), state in survey.logs.items():
            place = self.positions.get((topic, node))
            is_known = place is not None and place.log == state.log
            offset = max(place.offset, state.first) if is_known and place else OFFSET_EARLIEST
            starts.setdefault(topic, {})[node] = offset
        return starts

    def _schema(self) -> StructType:
        kinds = {name: kind for name, kind in SPARK_TYPES.items() if name not in _PLACE}
        fields = [StructField(name, kind) for name, kind in kinds.items()]
        if self.event_schema.fields:
            fields.append(StructField("event", self.event_schema))
        return StructType(fields + [StructField(name, _PLACE[name]) for name in PARTITION_BY])


def history(spark: SparkSession, path: str) -> History:
    """The table of an archive pipeline as it is now."""
    table = ParquetTable(spark, path, PARTITION_BY)
    owner = table.storage.read_text(OWNER)
    snapshot = manifest.snapshot(table.storage)
    if owner is None or snapshot.batch < 0:
        raise NsqError(f"{path} is not a table that `pumpline pipeline archive` has written to")
    checkpoint = Storage(spark, json.loads(owner)["checkpoint"])
    files = tuple(file.path for file in snapshot.files)
    places = positions_of(checkpoint, snapshot.batch)
    return History(spark, path, files, places, table.event_schema())


def positions_of(checkpoint: Storage, batch: int) -> Positions:
    """How far the batch of a stream went, out of Spark's checkpoint."""
    text = checkpoint.read_text(f"offsets/{batch}")
    if text is None:
        raise NsqError(f"{checkpoint.path('offsets')} says nothing about batch {batch}")
    return from_json(json.loads(text.splitlines()[-1]))
