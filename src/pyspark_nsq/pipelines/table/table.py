"""A table of Parquet files that takes each batch of a stream exactly once.

    TABLE/topic=orders/date=2026-11-16/hour=8/42-0.parquet     the files, by batch
    TABLE/_spark_metadata/42                                   the record of a batch (`manifest`)
    TABLE/_staging/                                            files being written
    TABLE/_retired/39.json                                     files that compaction replaced
    TABLE/_schema/17.json                                      schema of `event` since that batch
    TABLE/_settings/0.json                                     settings of the archive
    TABLE/_owner.json                                          the stream that writes the table

A batch is written to the staging directory, its files are moved into place, and then its record is
written: at that moment it becomes part of the table. After a crash, a batch that has a record is
skipped, and any other is written from the start. A note of the moves is written before the first of
them, so that files that were moved without a record are found and deleted. Every 10th batch, whose
record lists all files anyway, also merges small files. The files that it replaces are kept for some
time, as a query may still be reading them.
"""

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.table import manifest
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES, GROUPS_MAX, choose
from pyspark_nsq.pipelines.table.storage import Storage, StoredFile

STAGING = "_staging"
RETIRED = "_retired"
SCHEMAS = "_schema"
SETTINGS = "_settings"
OWNER = "_owner.json"
SUFFIX = ".parquet"
NOTE = ".moving"
GRACE_S = 600.0  # how long the files that a compaction has replaced are kept


@dataclass(slots=True)
class ParquetTable:
    spark: SparkSession
    path: str
    partition_by: tuple[str, ...]
    file_bytes: int = FILE_BYTES
    grace_s: float = GRACE_S
    compacted_files: int = 0
    storage: Storage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.spark, self.path)

    def claim(self, checkpoint: str, query_id: str | None) -> None:
        """Raise NsqError if another stream has written this table: its batches would be taken for
        ours. `query_id` is that of the checkpoint; None if it is new."""
        text = self.storage.read_text(OWNER)
        owner = json.loads(text) if text else None
        newest = manifest.newest_batch(self.storage)
        manifest.require_here(self.storage, manifest.snapshot(self.storage).files)
        if owner is not None and newest >= 0 and owner["query"] != query_id:
            raise NsqError(
                f"{self.path} was written by the stream with the checkpoint {owner['checkpoint']}, "
                f"not by that of {checkpoint}: every row would be there twice. Name that one, or "
                "another table"
            )

    def takes(self, there: DataType, news: DataType) -> bool:
        """Whether a column of one type can have another: files are read by one schema."""
        return there == news

    def event_schema(self) -> StructType:
        """The schema of `event`: all fields that were ever written."""
        _, text = self.storage.newest(SCHEMAS)
        return StructType.fromJson(json.loads(text)) if text else StructType()

    def keep_event_schema(self, batch: int, schema: StructType) -> None:
        """Keep the schema; call this before appending the batch. Unused fields do no harm."""
        self.storage.write_text(f"{SCHEMAS}/{batch}.json", schema.json())

    def settings(self) -> str | None:
        return self.storage.newest(SETTINGS)[1]

    def keep_settings(self, text: str) -> None:
        number, before = self.storage.newest(SETTINGS)
        if text != before:
            self.storage.write_text(f"{SETTINGS}/{number + 1}.json", text)

    def append(self, batch: int, rows: DataFrame | None, *, query_id: str, checkpoint: str) -> None:
        """Add a batch, which may have no rows; do nothing if the table has it."""
        newest = manifest.newest_batch(self.storage)
        if batch <= newest:  # a crash came after our record, and before Spark's
            self.storage.delete(STAGING)
            return
        if newest + 1 != batch:
            raise NsqError(
                f"{self.path} has batches up to {newest}, and the checkpoint goes on with {batch}: "
                "the table was deleted or replaced. Delete the checkpoint too, to begin anew"
            )
        if newest < 0:
            owner = {"query": query_id, "checkpoint": checkpoint}
            self.storage.write_text(OWNER, json.dumps(owner))
        self._clear(newest)
        staged = f"{STAGING}/{batch}"
        if rows is not None:
            writer = rows.write.mode("overwrite").partitionBy(*self.partition_by)
            writer.parquet(self.storage.path(staged))
        moves = self._moves(staged, batch)
        whole = manifest.is_whole(batch)
        known = manifest.snapshot(self.storage).files if whole else []
        groups = choose(self._directories(known), file_bytes=self.file_bytes)[:GROUPS_MAX]
        for number, (directory, group) in enumerate(groups):
            moves |= self._together(batch, number, directory, group)
        added = self._move(batch, moves)
        replaced = {file.path for _, group in groups for file in group}
        if replaced:
            self._retire(batch, replaced)
        kept = [file for file in known if file.path not in replaced]
        manifest.commit(self.storage, batch, kept + added)
        self.compacted_files += len(replaced)
        self.storage.delete(STAGING)
        if whole:
            self._delete_retired({file.path for file in kept + added})

    def _moves(self, staged: str, batch: int) -> dict[str, str]:
        """The moves of the files of a batch: target by source."""
        moves: dict[str, str] = {}
        for number, file in enumerate(self.storage.files(staged)):
            name = self.storage.relative(file.path)
            if name.endswith(SUFFIX):
                directory = name.removeprefix(f"{staged}/").rpartition("/")[0]
                moves[name] = f"{directory}/{batch}-{number}{SUFFIX}".lstrip("/")
        return moves

    def _move(self, batch: int, moves: dict[str, str]) -> list[StoredFile]:
        if not moves:
            return []
        self.storage.write_text(f"{STAGING}/{batch}{NOTE}", "\n".join(moves.values()))
        for source, target in moves.items():
            self.storage.move(source, target)
        return [self.storage.file(target) for target in moves.values()]

    def _clear(self, newest: int) -> None:
        """Delete what a killed writer left: staged files, and moved files without a record."""
        for name in self.storage.names(STAGING):
            number = name.removesuffix(NOTE)
            if name.endswith(NOTE) and number.isdigit() and int(number) > newest:
                for target in (self.storage.read_text(f"{STAGING}/{name}") or "").splitlines():
                    self.storage.delete(target)
        self.storage.delete(STAGING)

    def _directories(self, files: list[StoredFile]) -> dict[str, list[StoredFile]]:
        found: defaultdict[str, list[StoredFile]] = defaultdict(list)
        for file in files:
            found[self.storage.relative(file.path).rpartition("/")[0]].append(file)
        return found

    def _together(
        self, batch: int, number: int, directory: str, group: list[StoredFile]
    ) -> dict[str, str]:
        """Write the rows of many files to one staged file; return its move into place."""
        staged = f"{STAGING}/{batch}.{number}.together"
        rows = self.spark.read.option("mergeSchema", "true").parquet(*(f.path for f in group))
        rows.coalesce(1).write.mode("overwrite").parquet(self.storage.path(staged))
        written = [
            name
            for file in self.storage.files(staged)
            if (name := self.storage.relative(file.path)).endswith(SUFFIX)
        ]
        targets = [f"{directory}/{batch}-{number}-{n}-all{SUFFIX}" for n in range(len(written))]
        return dict(zip(written, (t.lstrip("/") for t in targets), strict=True))

    def _retire(self, batch: int, paths: set[str]) -> None:
        entry = {"at_s": time.time(), "paths": sorted(paths)}
        self.storage.write_text(f"{RETIRED}/{batch}.json", json.dumps(entry))

    def _delete_retired(self, live: set[str]) -> None:
        for name in self.storage.names(RETIRED):
            if name.startswith("."):
                continue
            entry = json.loads(self.storage.read_text(f"{RETIRED}/{name}") or "{}")
            if entry and time.time() - entry["at_s"] >= self.grace_s:
                for path in entry["paths"]:
                    if path not in live:
                        self.storage.delete(self.storage.relative(path))
                self.storage.delete(f"{RETIRED}/{name}")
