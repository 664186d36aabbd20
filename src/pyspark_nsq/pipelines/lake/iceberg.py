"""An Iceberg table that takes each batch of a stream exactly once, in any catalog of pyiceberg.

Executors write the files of a batch (`files`), and `pyiceberg` adds them in one transaction, with
new columns and wider types (`union_by_name`) and with the batch in the properties of the table and
of the snapshot. The table is partitioned by topic and hour of the timestamp: a file holds one value
of each, and has both columns in it. `catalogs` says where a table is.
"""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.transforms import HourTransform, IdentityTransform
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.lake import files
from pyspark_nsq.pipelines.lake.formats import is_wider
from pyspark_nsq.pipelines.lake.notes import TableOwner, refuse_gap, refuse_other
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES, GROUPS_MAX, choose
from pyspark_nsq.pipelines.table.storage import Storage, StoredFile
from pyspark_nsq.reading.decode import COLUMN_TYPES

BATCH, STREAM, CHECKPOINT = "pumpline.batch", "pumpline.stream", "pumpline.checkpoint"
SETTINGS, EVENT_SCHEMA = "pumpline.settings", "pumpline.event-schema"
# Without these, the metadata would grow with every batch.
PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
PLACE = ("_topic", "_hour")  # columns that files are written by, and do not have
MAINTAIN_EVERY = 10  # batches
KEEP_S = 24 * 3600.0  # snapshots
SNAPSHOTS_MAX = 500  # of which the metadata is written anew with each batch

_S_PER_HOUR = 3600


@dataclass(slots=True)
class IcebergLakeTable:
    spark: SparkSession
    catalog: Catalog
    identifier: tuple[str, ...]
    path: str | None = None  # the directory of a table with a catalog of its own
    file_bytes: int = FILE_BYTES
    keep_s: float = KEEP_S
    compacted_files: int = 0
    _news: dict[str, str] = field(default_factory=dict)  # properties for the next commit

    @property
    def name(self) -> str:
        return self.path or ".".join(self.identifier)

    @property
    def storage(self) -> Storage | None:
        """The directory of a table with a catalog of its own."""
        return Storage(self.spark, self.path) if self.path else None

    def opened(self) -> Table | None:
        """The table as it is now; None if there is none."""
        try:
            table = self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            self._require_no_other()
            return None
        except FileNotFoundError as error:
            raise self._moved(f"its catalog names a file that is not there ({error})") from None
        if self.path and table.location() != self._url():
            raise self._moved(f"its catalog names files of {table.location()}")
        return table

    def _require_no_other(self) -> None:
        """Raise NsqError if the catalog in the directory has the table of another directory."""
        namespace = self.identifier[:-1]
        if self.path and self.catalog.namespace_exists(namespace):
            for other in self.catalog.list_tables(namespace):
                raise self._moved(f"its catalog has a table {other[-1]}")

    def _moved(self, why: str) -> NsqError:
        return NsqError(
            f"{self.name} was moved or copied: {why}. An Iceberg table has absolute paths: move it "
            "back to where it was made"
        )

    def _url(self) -> str | None:
        return files.url(Storage(self.spark, self.path).root) if self.path else None

    def claim(self, checkpoint: str, query_id: str | None) -> None:
        """Raise NsqError if another stream, or no stream, has written this table."""
        table = self.opened()
        if table is not None and (newest_batch(table) >= 0 or table.current_snapshot()):
            refuse_other(self.name, owner_of(table), checkpoint, query_id)

    def takes(self, there: DataType, news: DataType) -> bool:
        """Whether a column of one type can have another."""
        return there == news or is_wider(there, news)

    def settings(self) -> str | None:
        table = self.opened()
        return self._news.get(SETTINGS) or (table.properties.get(SETTINGS) if table else None)

    def keep_settings(self, text: str) -> None:
        self._news[SETTINGS] = text

    def event_schema(self) -> StructType:
        table = self.opened()
        return event_schema_of(table) if table else StructType()

    def keep_event_schema(self, batch: int, schema: StructType) -> None:
        self._news[EVENT_SCHEMA] = schema.json()

    def append(self, batch: int, rows: DataFrame | None, *, query_id: str, checkpoint: str) -> None:
        """Add a batch, which may have no rows; do nothing if the table has it."""
        table = self.opened()
        newest = newest_batch(table)
        if batch <= newest:  # a crash came after our commit, and before Spark's
            return
        refuse_gap(self.name, newest, batch)
        table = self._created(table, set(COLUMN_TYPES if rows is None else rows.columns))
        storage = Storage(self.spark, table.location())
        written = [] if rows is None else files.write(storage, batch, _placed(rows), PLACE)
        mark = {BATCH: str(batch), STREAM: query_id}
        paths = [files.url(file.stored.path) for file in written]
        try:
            with table.transaction() as change:
                if paths:
                    with table.io.new_input(paths[0]).open() as file, change.update_schema() as new:
                        new.union_by_name(optional(pq.read_schema(file)))
                change.set_properties({**self._news, **mark, CHECKPOINT: checkpoint})
                if paths:
                    change.add_files(paths, mark, check_duplicate_files=False)
            if (batch + 1) % MAINTAIN_EVERY == 0:
                self.maintain()
        except CommitFailedException as error:
            raise NsqError(f"{self.name} was changed by another writer: {error}") from None
        self._news.clear()

    def _created(self, table: Table | None, columns: set[str]) -> Table:
        """The table; a new one has those columns of a message, as the body may have been dropped.
        Those of the event come with the batch."""
        if table is None:
            kept = ((name, kind) for name, kind in COLUMN_TYPES.items() if name in columns)
            schema = pa.schema([pa.field(name, kind) for name, kind in kept])
            self.catalog.create_namespace_if_not_exists(self.identifier[:-1])
            table = self.catalog.create_table(
                self.identifier, schema, location=self._url(), properties=PROPERTIES
            )
        if table.spec().is_unpartitioned():  # also after a kill between the two
            with table.update_spec() as spec:
                spec.add_field("topic", IdentityTransform(), "topic")
                spec.add_field("timestamp", HourTransform(), "timestamp_hour")
            table = table.refresh()
        return table

    # -- maintenance --------------------------------------------------------------------------

    def maintain(self) -> tuple[int, int]:
        """Merge small files in some partitions, expire old snapshots, and delete what only those
        needed. Return how many files were replaced and deleted."""
        table = self.opened()
        snapshot = table.current_snapshot() if table else None
        if table is None or snapshot is None:
            return 0, 0
        groups: dict[str, list[DataFile]] = defaultdict(list)
        for task in () if has_equality_deletes(snapshot) else table.scan().plan_files():
            if not task.delete_files:  # or rows that others deleted would come back
                groups[str(task.file.partition)].append(task.file)
        sizes = {
            key: [StoredFile(f.file_path, f.file_size_in_bytes, 0, 0, 0) for f in found]
            for key, found in groups.items()
        }
        chosen = choose(sizes, file_bytes=self.file_bytes)[:GROUPS_MAX]
        by_path = {file.file_path: file for found in groups.values() for file in found}
        replaced = [by_path[file.path] for _, group in chosen for file in group]
        if replaced:
            merged = [
                path
                for _, group in chosen
                for path in self._together(table, [f.path for f in group])
            ]
            self._replace(table, replaced, merged)
            self.compacted_files += len(replaced)
        return len(replaced), expire(self.opened() or table, keep_s=self.keep_s)

    def _together(self, table: Table, paths: list[str]) -> list[str]:
        storage = Storage(self.spark, table.location())
        rows = read(self.spark, paths)
        written = files.write_together(storage, newest_batch(table), rows)
        return [files.url(file.stored.path) for file in written]

    def _replace(self, table: Table, old: list[DataFile], new: list[str]) -> None:
        with table.transaction() as change:
            mark = {name: table.properties[name] for name in (BATCH, STREAM)}
            with change.update_snapshot(snapshot_properties=mark).overwrite() as snapshot:
                for file in old:
                    snapshot.delete_data_file(file)
                for path in new:
                    made = parquet_file_to_data_file(table.io, table.metadata, path)
                    snapshot.append_data_file(made)


def optional(schema: pa.Schema) -> pa.Schema:
    """The schema with NULL allowed everywhere: rows that are there have no value in a new column,
    whatever Spark knows of the rows of this batch."""
    return pa.schema([_optional_field(field) for field in schema])


def _optional_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _optional_type(field.type))


def _optional_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_optional_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_optional_field(kind.value_field))
    return kind


def _placed(rows: DataFrame) -> DataFrame:
    """The rows with the columns that files are written by. The table has no date and hour: it is
    partitioned by the timestamp itself."""
    hours = F.floor(F.unix_seconds("timestamp") / _S_PER_HOUR)
    topic, hour = PLACE
    return rows.drop("date", "hour").withColumn(topic, F.col("topic")).withColumn(hour, hours)


def read(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The rows of files. Directories are not taken for columns: files have all of them."""
    reader = spark.read.option("mergeSchema", "true").option("recursiveFileLookup", "true")
    return reader.parquet(*paths)


def newest_batch(table: Table | None) -> int:
    """-1 if there is none."""
    return -1 if table is None else int(table.properties.get(BATCH, -1))


def has_equality_deletes(snapshot: Snapshot) -> bool:
    """Whether rows are deleted by their values, which pyiceberg does not know."""
    told = snapshot.summary.additional_properties if snapshot.summary else {}
    return told.get("total-equality-deletes", "0") != "0"


def snapshot_at(table: Table, batch: int) -> Snapshot | None:
    """The newest snapshot without later batches; None if there were no rows then."""
    found = table.current_snapshot()
    if newest_batch(table) > batch:
        while found is not None and _batch_of(table, found) > batch:
            found = _before(table, found)
    return found


def _batch_of(table: Table, snapshot: Snapshot) -> int:
    """The newest batch in a snapshot, -1 if it has none. A snapshot of another writer does not say
    which: it is that of the one before."""
    found: Snapshot | None = snapshot
    while found is not None:
        said = found.summary.additional_properties.get(BATCH) if found.summary else None
        if said is not None:
            return int(said)
        found = _before(table, found)
    return -1


def _before(table: Table, snapshot: Snapshot) -> Snapshot | None:
    parent = snapshot.parent_snapshot_id
    found = table.snapshot_by_id(parent) if parent else None
    if parent and found is None:
        raise NsqError(
            f"{'.'.join(table.name())} is a batch ahead of what belongs to it, and the snapshot "
            "before that batch has expired: run the archive, which puts both right"
        )
    return found


def owner_of(table: Table) -> TableOwner | None:
    query = table.properties.get(STREAM)
    return TableOwner(query, table.properties.get(CHECKPOINT, "")) if query else None


def event_schema_of(table: Table) -> StructType:
    text = table.properties.get(EVENT_SCHEMA)
    return StructType.fromJson(json.loads(text)) if text else StructType()


def expire(table: Table, *, keep_s: float) -> int:
    """Expire the oldest snapshots, and delete the files that only they have; return how many data
    files. A kill in between leaves files that nobody reads. So does a branch that is no more: what
    it replaced may be part of the table."""
    snapshots = list(ancestors_of(table.current_snapshot(), table.metadata))[::-1]
    until_ms = datetime.now(UTC).timestamp() * 1000 - keep_s * 1000
    referenced = _referenced(table)
    count = 0
    while count < len(snapshots) - 1 and (
        snapshots[count].timestamp_ms < until_ms or len(snapshots) - count > SNAPSHOTS_MAX
    ):
        if snapshots[count].snapshot_id in referenced:
            break
        count += 1
    if not count:
        return 0
    # What a snapshot replaced is needed only by those before it, which all go.
    replaced = {path for each in snapshots[: count + 1] for path in _replaced(table, each)}
    manifests = {path for each in snapshots[:count] for path in _manifests(table, each)}
    manifests -= _manifests(table, snapshots[count])
    lists = [snapshot.manifest_list for snapshot in snapshots[:count]]
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    gone = {s.snapshot_id for s in table.metadata.snapshots if s.timestamp_ms < until_ms} - ids
    gone |= {snapshot.snapshot_id for snapshot in snapshots[:count]}
    table.maintenance.expire_snapshots().by_ids(sorted(gone - referenced)).commit()
    for path in [*replaced, *manifests, *lists]:
        with suppress(FileNotFoundError):  # another tool may have deleted it
            table.io.delete(path)
    return len(replaced)


def _referenced(table: Table) -> set[int]:
    """The snapshots that stay: the newest, and those that a tag or a branch of the user's is, or
    was made from. Files that were replaced since then are still part of it."""
    found: set[int] = set()
    for name, ref in table.metadata.refs.items():
        newest = table.snapshot_by_id(ref.snapshot_id)
        line = (newest,) if name == MAIN_BRANCH else ancestors_of(newest, table.metadata)
        found |= {snapshot.snapshot_id for snapshot in line if snapshot}
    return found


def _manifests(table: Table, snapshot: Snapshot) -> set[str]:
    return {manifest.manifest_path for manifest in snapshot.manifests(table.io)}


def _replaced(table: Table, snapshot: Snapshot) -> list[str]:
    """The data files that were part of the table until this snapshot."""
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED
    ]
