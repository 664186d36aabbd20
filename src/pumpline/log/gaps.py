"""Offsets that a log has left out: `<start>-<end>.gap`, empty files with two offsets of 20 digits.

They were given out and lost, or may have been (`log.run_mark`). The name is synced with that of the
segment that begins at `end`, so a loss of power leaves both or none.
"""

import os
import re
from contextlib import suppress

from pumpline.core.messages.spans import Span

_NAME = re.compile(r"(\d{20})-(\d{20})\.gap", re.ASCII)


def read_gaps(directory: str) -> list[Span]:
    """In order."""
    found = map(_NAME.fullmatch, os.listdir(directory))
    return sorted((int(match[1]), int(match[2])) for match in found if match is not None)


def write_gap(directory: str, gap: Span) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
    os.close(os.open(_path(directory, gap), flags, 0o600))


def remove_gap(directory: str, gap: Span) -> None:
    with suppress(OSError):  # the next start finds it again
        os.unlink(_path(directory, gap))


def missing(gaps: list[Span], start: int) -> int:
    """How many offsets from `start` on are left out."""
    return sum(end - max(begin, start) for begin, end in gaps if end > start)


def _path(directory: str, gap: Span) -> str:
    return os.path.join(directory, f"{gap[0]:020d}-{gap[1]:020d}.gap")
