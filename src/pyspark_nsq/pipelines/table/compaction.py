"""Which small files of a table are put together into larger ones. Pure: knows sizes, not files.

A stream leaves a few small files a batch. Rewriting all of them each time would write an hour's
data again and again, so files are put together by tiers: the smallest ones first, and a larger one
only when those before it add up to as much. A byte is then rewritten some log2(size) times at most.
"""

from collections.abc import Mapping, Sequence

from pyspark_nsq.pipelines.table.storage import StoredFile

FILE_BYTES = 128 << 20  # files of this size are left alone
GROUP_FILES_MIN = 4  # fewer are not worth a rewrite


def choose(
    directories: Mapping[str, Sequence[StoredFile]], *, file_bytes: int = FILE_BYTES
) -> list[tuple[str, list[StoredFile]]]:
    """Groups to be put together, each with the directory it is in."""
    groups = [(name, _group(files, file_bytes)) for name, files in sorted(directories.items())]
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
