"""Reads a table of any format and the live topic behind it as one: `table.history` for all three.

The format's library names the files of the table at one moment, and Spark's Parquet reader reads
them. The rest is as for a Parquet table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.lake.formats import DELTA, ICEBERG, widest
from pyspark_nsq.pipelines.lake.notes import TableOwner
from pyspark_nsq.pipelines.lake.tables import delta_table, format_of, iceberg_table
from pyspark_nsq.pipelines.table.history import (
    Files,
    History,
    checkpoint_of,
    history,
    positions_of,
)
from pyspark_nsq.pipelines.table.layout import ArchiveSettings, placed_only
from pyspark_nsq.pipelines.table.storage import Storage

if TYPE_CHECKING:  # their libraries may not be installed
    from pyspark_nsq.pipelines.lake.delta import DeltaLakeTable
    from pyspark_nsq.pipelines.lake.iceberg import IcebergLakeTable

_TOPIC_IN_PATH = "/topic=([^/]+)/"


@dataclass(frozen=True, slots=True)
class LakeFiles(Files):
    """Files that the library of a format has named."""

    is_delta: bool = False
    topics: frozenset[str] = frozenset()

    def rows(self, schema: StructType) -> DataFrame:
        if not self.paths:
            return self.spark.createDataFrame([], schema)
        place = {"date", "hour", *(("topic",) if self.is_delta else ())}
        stored = StructType([field for field in schema if field.name not in place])
        if self.is_delta:  # numbers are wider in the files
            own = {"offset", "timestamp", "attempts"}
            for field in stored:
                field.dataType = field.dataType if field.name in own else widest(field.dataType)
        # Directories are not taken for columns: they differ between batches and merged files.
        reader = self.spark.read.schema(stored).option("recursiveFileLookup", "true")
        rows = reader.parquet(*self.paths)
        if self.is_delta:
            found = F.regexp_extract(F.col("_metadata.file_path"), _TOPIC_IN_PATH, 1)
            rows = rows.withColumn("topic", found)
        rows = placed_only(rows)
        return rows.select(*(F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in schema))


def any_history(spark: SparkSession, path: str, catalog: str | None = None) -> History:
    """The table of an archive pipeline and its quarantine, as they are now."""
    kind = format_of(spark, path, catalog)
    if kind == DELTA:
        return _of_delta(spark, path)
    if kind == ICEBERG:
        return _of_iceberg(spark, path, catalog)
    return history(spark, path)


def _of_delta(spark: SparkSession, path: str) -> History:
    table = delta_table(spark, path)
    opened = table.opened()
    batch = table.newest_batch(opened)
    owner = table.notes.owner()
    if opened is None or owner is None or batch < 0:
        raise _not_ours(path)
    settings = ArchiveSettings.from_json(table.settings())
    quarantine = _quarantine_path(spark, path, settings)
    return _history(
        spark,
        path,
        owner,
        batch,
        settings,
        table.event_schema(),
        files=delta_files(table, batch),
        quarantine=delta_files(delta_table(spark, quarantine), batch),
    )


def _of_iceberg(spark: SparkSession, path: str, catalog: str | None) -> History:
    from pyspark_nsq.pipelines.lake.iceberg import event_schema_of, newest_batch, owner_of

    table = iceberg_table(spark, path, catalog)
    opened = table.opened()
    batch = newest_batch(opened)
    owner = owner_of(opened) if opened else None
    if opened is None or owner is None or batch < 0:
        raise _not_ours(path)
    settings = ArchiveSettings.from_json(table.settings())
    named = settings.quarantine if catalog else _quarantine_path(spark, path, settings)
    return _history(
        spark,
        path,
        owner,
        batch,
        settings,
        event_schema_of(opened),
        files=iceberg_files(table, batch),
        quarantine=iceberg_files(iceberg_table(spark, named, catalog), batch),
    )


def _history(
    spark: SparkSession,
    path: str,
    owner: TableOwner,
    batch: int,
    settings: ArchiveSettings,
    event_schema: StructType,
    *,
    files: LakeFiles,
    quarantine: LakeFiles,
) -> History:
    checkpoint = checkpoint_of(spark, path, owner.checkpoint)
    positions = positions_of(checkpoint, batch)
    root = checkpoint.root
    return History(spark, files, quarantine, positions, event_schema, settings, root, batch)


def delta_files(table: "DeltaLakeTable", batch: int) -> LakeFiles:
    """The files of a table after a batch; a later batch may be in it already."""
    from pyspark_nsq.pipelines.lake.delta import has_deletion_vectors

    opened = table.opened()
    while opened is not None and table.newest_batch(opened) > batch:
        opened.load_as_version(opened.version() - 1)
    if opened is not None and has_deletion_vectors(opened):
        raise _merge_on_read(table.path)
    paths = () if opened is None else tuple(opened.file_uris())
    topics = {str(place["topic"]) for place in opened.partitions()} if opened else set()
    return LakeFiles(table.spark, table.path, paths, is_delta=True, topics=frozenset(topics))


def iceberg_files(table: "IcebergLakeTable", batch: int) -> LakeFiles:
    """The files of a table after a batch; a later batch may be in it already."""
    from pyspark_nsq.pipelines.lake.iceberg import has_equality_deletes, snapshot_at

    opened = table.opened()
    snapshot = snapshot_at(opened, batch) if opened else None
    if opened is None or snapshot is None:
        return LakeFiles(table.spark, table.name, ())
    if has_equality_deletes(snapshot):
        raise _merge_on_read(table.name)
    tasks = list(opened.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    if any(task.delete_files for task in tasks):
        raise _merge_on_read(table.name)
    found = [task.file for task in tasks]
    topics = frozenset(str(file.partition[0]) for file in found)
    paths = tuple(file.file_path for file in found)
    return LakeFiles(table.spark, table.name, paths, topics=topics)


def _quarantine_path(spark: SparkSession, path: str, settings: ArchiveSettings) -> str:
    named = settings.quarantine
    if named and Storage(spark, named).exists():
        return named
    return f"{path.rstrip('/')}-quarantine"  # both may have been moved


def _merge_on_read(name: str) -> NsqError:
    return NsqError(
        f"{name} has rows that are deleted and still in its files (merge on read), where Spark "
        "would find them: rewrite the files first, with the tool that deleted the rows"
    )


def _not_ours(path: str) -> NsqError:
    return NsqError(f"{path} is not a table that `pumpline pipeline archive` has written to")
