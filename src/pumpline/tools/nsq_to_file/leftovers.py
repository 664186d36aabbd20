"""Files that a killed nsq_to_file has left: found at the start of a topic, mended, moved.

Only files whose names the topic's format can give are looked at, and no deeper in the working
directory than the format reaches. Blocking.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from pumpline.tools.nsq_to_file.encoding import Encoding
from pumpline.tools.nsq_to_file.filenames import Filenames
from pumpline.tools.nsq_to_file.moving import copied_name, delete_copy
from pumpline.tools.nsq_to_file.output_file import mend

log = logging.getLogger("pumpline.tools.nsq_to_file")


def mend_leftovers(
    directory: Path, names: Filenames, encoding: Encoding, *, depth: int, is_work_dir: bool
) -> list[Path]:
    """Mend what was left; return the files that are whole now and still there.

    Files with a mark were left, if nobody writes them. Where the file system knows no marks, all
    of a working directory were, and elsewhere the newest one may have been.
    """
    ours = [path for path in _files(directory, depth) if _is_ours(path, directory, names)]
    newest = max(ours, key=_changed_ns, default=None)
    mended = []
    for path in ours:
        force = is_work_dir or path == newest
        cut_bytes = mend(path, encoding, force=force, keeps_mark=is_work_dir)
        if cut_bytes is None:
            continue
        if cut_bytes:
            log.warning("%s: cut %d bytes that were not finished before a kill", path, cut_bytes)
        if path.exists():
            mended.append(path)
    return mended


def delete_hidden(directory: Path, names: Filenames, *, depth: int) -> None:
    """New files that had no message yet, and copies of files that are still to be moved."""
    for path in _files(directory, depth):
        name = copied_name(path.name)
        if name and _is_ours(path.with_name(name), directory, names) and delete_copy(path):
            log.warning("%s: deleted, it was not complete before a kill", path)


def _is_ours(path: Path, directory: Path, names: Filenames) -> bool:
    return names.is_ours(str(path.relative_to(directory)))


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # somebody else has just moved it
        return 0


def _files(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif depth and entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), depth - 1)
