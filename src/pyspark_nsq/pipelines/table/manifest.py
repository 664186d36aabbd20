"""The record of which files belong to a table, in the format of Spark's own file sink.

    TABLE/_spark_metadata/<batch>            v1, then a line of JSON for each file the batch added
    TABLE/_spark_metadata/<batch>.compact    the same, for all files of the table, every 10th batch

A batch is part of the table from the moment when its record exists. `spark.read` follows the
record, so a reader never sees half a batch, nor files that a killed writer left behind. A whole
record may leave out files of earlier batches: compaction replaces many files with one that way.
"""

import json
from dataclasses import dataclass

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.table.storage import Storage, StoredFile

DIRECTORY = "_spark_metadata"
VERSION = "v1"
WHOLE_EVERY = 10  # batches; Spark's default
WHOLE = ".compact"
KEPT_BATCHES = 100  # older records are deleted: a whole record has replaced them


@dataclass(slots=True)
class Snapshot:
    """The files of the table after a batch; batch -1 is the empty table."""

    batch: int
    files: list[StoredFile]


def is_whole(batch: int) -> bool:
    """Whether the record of this batch lists all files."""
    return (batch + 1) % WHOLE_EVERY == 0


def newest_batch(storage: Storage) -> int:
    """-1 if there is none."""
    return max((batch for batch, _ in _records(storage)), default=-1)


def snapshot(storage: Storage, batch: int | None = None) -> Snapshot:
    """The table as it is now, or as it was after `batch`."""
    latest = newest_batch(storage) if batch is None else batch
    if latest < 0:
        return Snapshot(-1, [])
    first = latest // WHOLE_EVERY * WHOLE_EVERY - 1
    if is_whole(latest):
        first = latest
    files: list[StoredFile] = []
    for number in range(max(first, 0), latest + 1):
        files += _read(storage, number)
    return Snapshot(latest, files)


def require_here(storage: Storage, files: list[StoredFile]) -> None:
    """Raise NsqError if the table was moved: the record has whole paths, as Spark wants them."""
    for file in files:
        if not file.path.startswith(f"{storage.root.rstrip('/')}/"):
            was = file.path.partition("/topic=")[0]
            raise NsqError(
                f"{storage.root} was moved: its record names files of {was}. Move it back, or "
                "change the paths in its record as docs/pipelines.md says (Move or restore a table)"
            )


def commit(storage: Storage, batch: int, files: list[StoredFile]) -> None:
    """Make the batch part of the table. `files` are those it adds; all files if it is_whole."""
    lines = [VERSION, *(_line(file) for file in files)]
    storage.write_text(f"{DIRECTORY}/{_name(batch)}", "\n".join(lines))
    if is_whole(batch):
        for number, name in _records(storage):
            if number < batch - KEPT_BATCHES:
                storage.delete(f"{DIRECTORY}/{name}")


def _name(batch: int) -> str:
    return f"{batch}{WHOLE if is_whole(batch) else ''}"


def _records(storage: Storage) -> list[tuple[int, str]]:
    names = storage.names(DIRECTORY)
    return [
        (int(number), name)
        for name in names
        if (number := name.removesuffix(WHOLE)).isascii() and number.isdigit()
    ]


def _read(storage: Storage, batch: int) -> list[StoredFile]:
    text = storage.read_text(f"{DIRECTORY}/{_name(batch)}")
    lines = (text or "").splitlines()
    if not lines or lines[0] != VERSION:
        raise NsqError(f"{storage.path(DIRECTORY)}: the record of batch {batch} is not readable")
    files: list[StoredFile] = []
    for line in lines[1:]:
        entry = json.loads(line)
        files.append(
            StoredFile(
                path=entry["path"],
                size_bytes=entry["size"],
                modified_ms=entry["modificationTime"],
                block_bytes=entry["blockSize"],
                replication=entry["blockReplication"],
            )
        )
    return files


def _line(file: StoredFile) -> str:
    entry = {
        "path": file.path,
        "size": file.size_bytes,
        "isDir": False,
        "modificationTime": file.modified_ms,
        "blockReplication": file.replication,
        "blockSize": file.block_bytes,
        "action": "add",
    }
    return json.dumps(entry, separators=(",", ":"))
