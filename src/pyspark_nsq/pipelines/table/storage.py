"""Files on this machine, HDFS or an object store, through Hadoop's file systems as Spark uses them.

The driver does everything, through Spark's JVM. Knows paths and texts, and where a checkpoint of
Spark has the id of its stream; must not know tables.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError

TEXT_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str  # with its scheme, as in file:/tables/orders/part-0.parquet
    size_bytes: int
    modified_ms: int
    block_bytes: int
    replication: int


class Storage:
    """One directory; names are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._configuration = spark._jsc.hadoopConfiguration()
        path = jvm.org.apache.hadoop.fs.Path(root)
        try:
            self._files = path.getFileSystem(self._configuration)
        except Py4JJavaError as error:
            raise NsqError(f"{root}: {error.java_exception.getMessage()}") from None
        if not path.isAbsolute() and self._files.getUri().getScheme() == "file":
            # As other programs take it: Java may have been started in another directory.
            path = jvm.org.apache.hadoop.fs.Path(os.path.abspath(root))
        self.root = str(self._files.makeQualified(path).toString())

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._path(name)))

    def names(self, name: str = "") -> list[str]:
        """The names directly in a directory; empty if it does not exist."""
        if not self.exists(name):
            return []
        return [
            str(entry.getPath().getName()) for entry in self._files.listStatus(self._path(name))
        ]

    def batches(self, name: str) -> list[int]:
        """The batches that have a file in a directory of a checkpoint. Spark keeps the last 100."""
        return [int(each) for each in self.names(name) if each.isdigit()]

    def files(self, name: str = "") -> Iterator[StoredFile]:
        """All files below a directory."""
        if not self.exists(name):
            return
        entries = self._files.listFiles(self._path(name), True)
        while entries.hasNext():
            yield _stored(entries.next())

    def file(self, name: str) -> StoredFile:
        return _stored(self._files.getFileStatus(self._path(name)))

    def read_text(self, name: str) -> str | None:
        """None if there is no such file."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._path(name))
        try:
            size = int(self._files.getFileStatus(self._path(name)).getLen())
            if size > TEXT_BYTES_MAX:
                raise NsqError(f"{self.path(name)} has {size:,} bytes, which is too much to read")
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def newest(self, directory: str) -> tuple[int, str | None]:
        """The number and text of the last file NUMBER.json; -1 and None if there is none."""
        numbers = [name.removesuffix(".json") for name in self.names(directory)]
        number = max((int(n) for n in numbers if n.isascii() and n.isdigit()), default=-1)
        return number, self.read_text(f"{directory}/{number}.json") if number >= 0 else None

    def write_text(self, name: str, text: str) -> None:
        """Write to another file, then rename it: a reader sees all of the text or none. An existing
        file is deleted before the rename, so what must survive a kill needs a new name."""
        beside = self._path(_hidden(name))
        stream = self._files.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        target = self._path(name)
        if self._files.exists(target):
            self._files.delete(target, False)
        self._rename(beside, target)

    def move(self, source: str, target: str) -> None:
        self._files.mkdirs(self._path(target.rpartition("/")[0]))
        self._rename(self._path(source), self._path(target))

    def delete(self, name: str) -> None:
        self._files.delete(self._path(name), True)

    def relative(self, path: str) -> str:
        """The part of a path below the root, whatever its scheme looks like."""
        plain = path.partition(":")[2] if ":" in path.partition("/")[0] else path
        root = self.root.partition(":")[2] if ":" in self.root.partition("/")[0] else self.root
        plain, root = plain.lstrip("/"), root.strip("/")
        if not plain.startswith(root + "/"):
            raise NsqError(f"{path} is not in {self.root}")
        return plain[len(root) + 1 :]

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))

    def _rename(self, source: Any, target: Any) -> None:
        if not self._files.rename(source, target):
            raise NsqError(f"{source.toString()} could not be renamed to {target.toString()}")


def checkpoint_id(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the stream that a checkpoint belongs to; None if the checkpoint is new."""
    text = Storage(spark, checkpoint).read_text("metadata")
    return str(json.loads(text)["id"]) if text else None


def _stored(status: Any) -> StoredFile:
    return StoredFile(
        path=str(status.getPath().toString()),
        size_bytes=int(status.getLen()),
        modified_ms=int(status.getModificationTime()),
        block_bytes=int(status.getBlockSize()),
        replication=int(status.getReplication()),
    )


def _hidden(name: str) -> str:
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}.{last}.new"
