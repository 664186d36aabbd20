"""A check of a segment that this process has not seen the inside of: to the last byte, once.

From then on the index of the segment is whole, and its damage is known and stepped over.
"""

import threading
from typing import Protocol

from pumpline.log import recovery
from pumpline.log.recovery import Damage
from pumpline.log.segment import Segment

# Checks are work for the interpreter: one at a time leaves the event loop its share of it.
_checking = threading.Lock()


class CheckedLog(Protocol):
    """A log, as seen from here."""

    def limit_of(self, segment: Segment) -> int: ...

    def report_damage(self, damages: list[Damage]) -> None: ...


def check(log: CheckedLog, segment: Segment, fd: int) -> None:
    """Make sure that the index of a segment is whole and its damage known; from a thread."""
    if segment.unchecked_bytes:
        with _checking:
            if segment.unchecked_bytes:  # not done by another thread meanwhile
                found, damages = recovery.survey(segment, fd, log.limit_of(segment))
                segment.learn(found)
                log.report_damage(damages)
