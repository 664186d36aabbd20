"""Offsets that a log has left out: `<start>-<end>.gap`, empty files with two offsets of 20 digits.

They were given out and lost, or may have been (`log.run_mark`). The name is synced with that of the
segment that begins at `end`, so a loss of power leaves both or none.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from pumpline.core.messages.spans import Span
from pumpline.log.files import open_file

_NAME = re.compile(r"(\d{20})-(\d{20})\.gap", re.ASCII)


def read_gaps(directory: str, names: Iterable[str], end: int) -> list[Span]:
    """Those of a log with these files that ends there, in order. A kill may have left one that no
    segment follows: it is removed."""
    found = map(_NAME.fullmatch, names)
    gaps = sorted((int(match[1]), int(match[2])) for match in found if match is not None)
    return _kept(directory, gaps, [gap for gap in gaps if gap[1] <= end])


def write_gaps(directory: str, gaps: list[Span]) -> None:
    for gap in gaps:
        os.close(open_file(_path(directory, gap), os.O_CREAT | os.O_WRONLY))


def retire_gaps(directory: str, gaps: list[Span], first: int) -> list[Span]:
    """Those that end after `first`; the files of the others are removed."""
    return _kept(directory, gaps, [gap for gap in gaps if gap[1] > first])


def _kept(directory: str, gaps: list[Span], kept: list[Span]) -> list[Span]:
    for gap in gaps:
        if gap not in kept:
            with suppress(OSError):  # the next start finds it again
                os.unlink(_path(directory, gap))
    return kept


def _path(directory: str, gap: Span) -> str:
    return os.path.join(directory, f"{gap[0]:020d}-{gap[1]:020d}.gap")
