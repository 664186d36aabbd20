"""The file `running` in the data directory: there while an nsqd runs, and after it was killed.

It is JSON, replaced durably by each start:

| field     | meaning                                                                             |
|-----------|-------------------------------------------------------------------------------------|
| boot_id   | of the machine's start: after another one, what was not synced may be lost          |
| is_synced | nobody was given a message before it was synced (`--sync-every=1`)                  |
| losses    | starts since the last clean stop that came after a loss                             |

A kill loses nothing: the system has what was written. After a loss of power a log may end before
messages that were delivered. The ids of these must not be given to others, because consumers
remember ids, and offsets likewise, because readers by offset remember those: so the next message
of each log gets an offset `losses` x SKIPPED further. The count makes the distance larger than
that of the loss before, as what came after that may be lost as well.
"""

import logging
import os
from contextlib import suppress

import msgspec

from pumpline.log.files import BAD, NotAFile, read_whole, sync_file, write_whole

FILE = "running"
SKIPPED = 1 << 22  # offsets: more than are given out between two fsyncs (2,500 messages, or 2 s)
SYNC_EVERY_MAX = SKIPPED // 2  # messages of a log, whatever --sync-every says
_LOSSES_MAX = 100

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


_LOG = logging.getLogger(__name__)


class _Mark(msgspec.Struct):
    boot_id: str
    is_synced: bool
    losses: int = 0


def begin_run(directory: str, *, is_synced: bool) -> int:
    """Mark the directory as in use; returns how many losses there were since the last clean stop.
    A full disk does not keep nsqd from starting: then the old mark stays."""
    path = os.path.join(directory, FILE)
    before = _read(path)
    boot_id = _boot_id()
    losses = 0
    if before is not None:
        is_lost = not before.is_synced and not (boot_id and before.boot_id == boot_id)
        losses = min(before.losses + is_lost, _LOSSES_MAX)
    mark = _Mark(boot_id, is_synced=is_synced, losses=losses)
    with suppress(OSError):
        write_whole(path, msgspec.json.encode(mark), sync=True)
        sync_file(directory)
    return losses


def end_run(directory: str) -> None:
    """Everything is on the disk."""
    with suppress(OSError):
        os.unlink(os.path.join(directory, FILE))


def _read(path: str) -> _Mark | None:
    try:
        return msgspec.json.decode(read_whole(path), type=_Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _LOG.error("FILES: %s cannot be read, as after a loss of power: %s", path, error)
        if isinstance(error, NotAFile):  # it cannot be replaced if it is a directory
            with suppress(OSError):
                os.replace(path, path + BAD)
        return _Mark(boot_id="", is_synced=False)  # it was there, and damage may be of a loss


def _boot_id() -> str:
    """Empty if it is not known: then every kill counts as a loss."""
    try:
        with open(_BOOT_ID_PATH, "rb") as file:
            return file.read().strip().decode()
    except OSError:
        return ""
