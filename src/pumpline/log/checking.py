"""A check of a segment that this process has not seen the inside of: to the last byte, once.

From then on the index of the segment is whole, and its damage is known and stepped over.
"""

import threading
from typing import TYPE_CHECKING

from pumpline.log import recovery
from pumpline.log.segment import Segment

if TYPE_CHECKING:  # its readers check
    from pumpline.log.log import Log

# Checks are work for the interpreter: one at a time leaves the event loop its share of it.
_checking = threading.Lock()


def check(log: "Log", segment: Segment, fd: int) -> None:
    """Make sure that the index of a segment is whole and its damage known; from a thread."""
    if segment.unchecked_bytes:
        with _checking:
            if segment.unchecked_bytes:  # not done by another thread meanwhile
                found, damages = recovery.survey(segment, fd, log.limit_of(segment))
                segment.learn(found)
                log.report_damage(damages)
