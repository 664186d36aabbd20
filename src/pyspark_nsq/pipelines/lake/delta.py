"""A Delta table that takes each batch of a stream exactly once.

    TABLE/_delta_log/             Delta's own log
    TABLE/data/42-1f0a9c3e/…      the files of a batch (`files`)
    TABLE/_owner.json, _settings/, _schema/, _checkpoint/       of the archive (`notes`)

`deltalake` commits the files of a batch and, in the same commit, the stream's id and the batch as
Delta's application transaction, which tells whether the table has a batch. Paths in the log are
relative, so the directory can be moved. The library cannot widen a column, so numbers are stored
in the widest type of their kind: an INT of a --schema is a BIGINT in the table, and may become one
in the --schema later.
"""

import json
import time
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    Transaction,
    create_table_with_add_actions,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegerType, StructField, StructType

from pyspark_nsq.columns import SPARK_TYPES
from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.lake import files
from pyspark_nsq.pipelines.lake.formats import widest
from pyspark_nsq.pipelines.lake.notes import Notes, TableOwner, refuse_gap, refuse_other
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES, GROUPS_MAX, choose
from pyspark_nsq.pipelines.table.layout import PARTITION_BY
from pyspark_nsq.pipelines.table.storage import Storage, StoredFile

LOG = "_delta_log"
COMPACT_EVERY = 10  # batches
VACUUM_EVERY_S = 24 * 3600
KEEP_HOURS = 168  # files that were replaced, as Delta itself keeps them
VACUUMED = "_vacuumed.json"

# Partition values are not in the files; the library makes them of the texts in its log.
_MESSAGE = StructType(
    [
        *(StructField(name, kind) for name, kind in SPARK_TYPES.items()),
        StructField("date", DateType()),
        StructField("hour", IntegerType()),
    ]
)


@dataclass(slots=True)
class DeltaLakeTable:
    spark: SparkSession
    path: str
    file_bytes: int = FILE_BYTES
    keep_hours: int = KEEP_HOURS
    compacted_files: int = 0
    storage: Storage = field(init=False)
    notes: Notes = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.spark, self.path)
        self.notes = Notes(self.storage)

    def claim(self, checkpoint: str, query_id: str | None) -> None:
        """Raise NsqError if another stream, or no stream, has written this table."""
        if self.opened() is not None:
            refuse_other(self.path, self.notes.owner(), checkpoint, query_id)

    def takes(self, there: DataType, news: DataType) -> bool:
        """Whether a column of one type can have another."""
        return widest(there) == widest(news)

    def settings(self) -> str | None:
        return self.notes.settings()

    def keep_settings(self, text: str) -> None:
        self.notes.keep_settings(text)

    def event_schema(self) -> StructType:
        return self.notes.event_schema()

    def keep_event_schema(self, batch: int, schema: StructType) -> None:
        self.notes.keep_event_schema(batch, schema)

    def opened(self) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        url = files.url(self.storage.root)
        return DeltaTable(url) if DeltaTable.is_deltatable(url) else None

    def newest_batch(self, table: DeltaTable | None) -> int:
        owner = self.notes.owner()
        found = table.transaction_version(owner.query) if table and owner else None
        return -1 if found is None else found

    def append(self, batch: int, rows: DataFrame | None, *, query_id: str, checkpoint: str) -> None:
        """Add a batch, which may have no rows; do nothing if the table has it."""
        table = self.opened()
        newest = self.newest_batch(table)
        if batch <= newest:  # a crash came after our commit, and before Spark's
            return
        refuse_gap(self.path, newest, batch)
        if newest < 0:
            self.notes.keep_owner(TableOwner(query_id, checkpoint))
        schema = _MESSAGE if rows is None else rows.schema
        stored = _stored(schema)
        written: list[files.DataFile] = []
        if rows is None:
            files.forget(self.storage, batch)
        else:
            wide = rows.select(*(F.col(f"`{f.name}`").cast(f.dataType) for f in stored.fields))
            written = files.write(self.storage, batch, wide, PARTITION_BY)
        try:
            self._commit(table, stored, [_added(file) for file in written], (query_id, batch))
            if (batch + 1) % COMPACT_EVERY == 0:
                self.maintain()
        except DeltaError as error:
            raise NsqError(f"{self.path}: {error}") from None

    def _commit(
        self,
        table: DeltaTable | None,
        schema: StructType,
        added: list[AddAction],
        transaction: tuple[str, int],
    ) -> None:
        mark = CommitProperties(app_transactions=[Transaction(*transaction)])
        partition_by = list(PARTITION_BY)
        if table is None:
            create_table_with_add_actions(
                files.url(self.storage.root),
                _delta(schema),
                added,
                mode="error",
                partition_by=partition_by,
                commit_properties=mark,
            )
            return
        there = {f.name: f for f in StructType.fromJson(json.loads(table.schema().to_json()))}
        news = StructType([f for f in schema if there.get(f.name) != f])
        if news.fields:  # a commit of its own: a column without values does no harm
            table.alter.add_columns(_delta(news).fields)
        table.create_write_transaction(
            [*added], "append", table.schema(), partition_by, commit_properties=mark
        )

    # -- maintenance --------------------------------------------------------------------------

    def maintain(self, *, now: bool = False) -> tuple[int, int]:
        """Merge small files in some partitions, and once a day, or `now`, delete those that were
        replaced long ago. Return how many files were replaced and deleted."""
        table = self.opened()
        if table is None:
            return 0, 0
        replaced = sum(self._compact(table, place) for place in self._crowded(table))
        self.compacted_files += replaced
        deleted = 0
        text = self.storage.read_text(VACUUMED)
        if now or text is None or time.time() - json.loads(text)["at_s"] >= VACUUM_EVERY_S:
            strict = self.keep_hours >= KEEP_HOURS
            deleted = len(table.vacuum(self.keep_hours, False, enforce_retention_duration=strict))
            self.storage.write_text(VACUUMED, json.dumps({"at_s": time.time()}))
        return replaced, deleted

    def _crowded(self, table: DeltaTable) -> list[dict[str, str]]:
        """The partitions with many small files: those whose small files all belong together, so
        that a large one is not rewritten for a few small ones."""
        places: dict[str, list[StoredFile]] = {}
        values: dict[str, dict[str, str]] = {}
        for path, size in zip(*_paths_and_sizes(table), strict=True):
            file = StoredFile(path, size, 0, 0, 0)
            value = files.DataFile(path, file).values
            key = json.dumps(value, sort_keys=True)
            places.setdefault(key, []).append(file)
            values[key] = value
        small = {
            key: [file for file in found if file.size_bytes < self.file_bytes]
            for key, found in places.items()
        }
        groups = choose(small, file_bytes=self.file_bytes)
        whole = [key for key, group in groups if len(group) == len(small[key])]
        return [values[key] for key in whole[:GROUPS_MAX]]

    def _compact(self, table: DeltaTable, place: dict[str, str]) -> int:
        where = [(name, "=", place[name]) for name in PARTITION_BY]
        outcome = table.optimize.compact(where, self.file_bytes, 1)
        return int(outcome["numFilesRemoved"])


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Whether files have rows that are deleted."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    return any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    )


def _paths_and_sizes(table: DeltaTable) -> tuple[list[str], list[int]]:
    actions = pa.table(table.get_add_actions(flatten=True))
    return actions["path"].to_pylist(), actions["size_bytes"].to_pylist()


def _stored(schema: StructType) -> StructType:
    """The columns as the table has them: in the widest type, but those of the message itself."""
    own = {field.name: field.dataType for field in _MESSAGE.fields}
    return StructType([StructField(f.name, own.get(f.name) or widest(f.dataType)) for f in schema])


def _delta(schema: StructType) -> Schema:
    return Schema.from_json(schema.json())  # Delta writes schemas as Spark does


def _added(file: files.DataFile) -> AddAction:
    return AddAction(
        path=file.name,
        size=file.stored.size_bytes,
        partition_values={name: file.values[name] for name in PARTITION_BY},
        modification_time=file.stored.modified_ms,
        data_change=True,
        stats=json.dumps({"numRecords": _count(file.stored.path)}),
    )


def _count(path: str) -> int:
    """The rows of a file, from its footer."""
    system, name = pyarrow.fs.FileSystem.from_uri(files.url(path))
    with system.open_input_file(name) as file:
        return int(pq.read_metadata(file).num_rows)
