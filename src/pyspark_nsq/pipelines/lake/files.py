"""The files of a batch: executors write them as Parquet, below `data/` in the table's directory.

    TABLE/data/42-1f0a9c3e/topic=orders/date=2026-11-16/hour=8/part-00000-….parquet

A file is part of the table when the table's log names it, and never moved: object stores need no
rename. Files of a batch that a kill interrupted are deleted when the batch is written again, since
their directory has its number. Knows files; must not know formats.
"""

import re
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame

from pyspark_nsq.pipelines.table.storage import Storage, StoredFile

DATA = "data"
SUFFIX = ".parquet"
MARK_CHARS = 8
# INT96, Spark's default, has no statistics, and Iceberg does not know it.
TIMESTAMPS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")

_VALUE = re.compile(r"([^/=]+)=([^/]*)")


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str  # relative to the table
    stored: StoredFile

    @property
    def values(self) -> dict[str, str]:
        """The partition that it is in, by its path. Names of topics, dates and hours need no
        escaping."""
        return dict(_VALUE.findall(self.name.rpartition("/")[0]))


def write(
    storage: Storage, batch: int, rows: DataFrame, partition_by: tuple[str, ...]
) -> list[DataFile]:
    """Write the rows of a batch; return the files."""
    forget(storage, batch)
    return write_beside(storage, f"{batch}-{_mark()}", rows, partition_by)


def write_together(storage: Storage, batch: int, rows: DataFrame) -> list[DataFile]:
    """Write rows of many small files to one."""
    return write_beside(storage, f"{batch}-{_mark()}-all", rows.coalesce(1), ())


def write_beside(
    storage: Storage, name: str, rows: DataFrame, partition_by: tuple[str, ...]
) -> list[DataFile]:
    rows.sparkSession.conf.set(*TIMESTAMPS)
    writer = rows.write.option(*NO_MARKER).partitionBy(*partition_by)
    directory = f"{DATA}/{name}"
    writer.parquet(storage.path(directory))
    found = ((storage.relative(file.path), file) for file in storage.files(directory))
    return [DataFile(name, file) for name, file in found if name.endswith(SUFFIX)]


def forget(storage: Storage, batch: int) -> None:
    """Delete what a killed writer left of a batch that is not in the table. What others have put
    there, such as a directory `1010`, is not ours."""
    ours = re.compile(rf"{batch}-[0-9a-f]{{{MARK_CHARS}}}(-all)?")
    for name in storage.names(DATA):
        if ours.fullmatch(name):
            storage.delete(f"{DATA}/{name}")


def _mark() -> str:
    return uuid4().hex[:MARK_CHARS]


def url(path: str) -> str:
    """A path as Hadoop writes it (file:/a, s3a://b) as other libraries do (file:///a, s3://b)."""
    scheme, colon, rest = path.partition(":")
    if not colon:
        return path
    if scheme in ("s3a", "s3n"):
        return f"s3:{rest}"
    return f"{scheme}:{rest}" if rest.startswith("//") else f"{scheme}://{rest}"
