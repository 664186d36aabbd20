"""Chooses which small files of a table are merged. Knows sizes; must not know files.

A stream writes a few small files a batch. Merging all of them each time would rewrite the same data
again and again, so files are merged by tiers: the smallest first, and a larger one only when those
before it add up to as much. A byte is then rewritten about log2(size) times at most.
"""

from collections.abc import Mapping, Sequence

from pyspark_nsq.pipelines.table.storage import StoredFile

FILE_BYTES = 128 << 20  # files of this size are left alone
GROUP_FILES_MIN = 4  # fewer are not worth a rewrite
GROUPS_MAX = 8  # directories in one run: each is a job of Spark, within a batch of the stream


def choose(
    directories: Mapping[str, Sequence[StoredFile]], *, file_bytes: int = FILE_BYTES
) -> list[tuple[str, list[StoredFile]]]:
    """The groups of files to merge, each with its directory; those with the most files first, so
    that every directory has its turn. A run merges GROUPS_MAX of them."""
    groups = [(name, _group(files, file_bytes)) for name, files in sorted(directories.items())]
    groups.sort(key=lambda group: -len(group[1]))
    return [(name, group) for name, group in groups if group]


def _group(files: Sequence[StoredFile], file_bytes: int) -> list[StoredFile]:
    small = sorted((f for f in files if f.size_bytes < file_bytes), key=lambda f: f.size_bytes)
    group: list[StoredFile] = []
    total_bytes = 0
    for file in small:
        if len(group) >= GROUP_FILES_MIN and file.size_bytes > total_bytes:
            break
        if group and total_bytes + file.size_bytes > 2 * file_bytes:
            break
        group.append(file)
        total_bytes += file.size_bytes
    return group if len(group) >= GROUP_FILES_MIN else []
