"""Keeps a topic's manifest up to date: the part of its state that is not in the log or a cursor.

A manifest that cannot be written is written again every second until it can be: a kill must not
undo a change for longer than that. An ephemeral topic has none. Knows the log and the file
(`log.directory`); must not know topics.
"""

from collections.abc import Callable

from pumpline.log.directory import Manifest
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.storage.checkpoints import CHECKPOINT_S
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room

_RETRY_S = 1.0


class ManifestWriter:
    __slots__ = ("_describe", "_disk", "_due", "_log", "_topic", "clean_mark", "is_missing")

    def __init__(
        self, topic: str, log: Log | Ring, disk: Disk, *, describe: Callable[[], Manifest]
    ) -> None:
        """`describe` returns the manifest of the topic as it is now."""
        self.clean_mark: tuple[int, int, int] | None = None  # in the manifest on disk
        self.is_missing = False  # on disk: nothing says what the ids of the topic's messages are
        self._topic = topic
        self._log = log
        self._disk = disk
        self._describe = describe
        self._due = False

    def write_soon(self) -> None:
        """With the next checkpoint of channels."""
        self._write_after(CHECKPOINT_S)

    def try_write(self, *, clean: bool = False) -> OSError | None:
        """Write it; if that fails it is written later, and the error is returned."""
        try:
            self.write(clean=clean)
        except OSError as error:
            return error
        return None

    def write(self, *, clean: bool = False) -> None:
        """Write it; OSError when it cannot be written now. `clean`: nothing is appended to the log
        any more, and its newest segment needs no check on the next start."""
        try:
            self.replace(clean=clean)
        except OSError as error:
            self._disk.failed(error, f"manifest of topic {self._topic}")
            self._write_after(_RETRY_S)
            raise

    def replace(self, *, clean: bool = False) -> None:
        """As `write`, without another attempt after an error."""
        log = self._log
        if isinstance(log, Log):
            self.clean_mark = log.mark() if clean else None
            manifest = self._describe()
            manifest.clean = self.clean_mark
            write = self._disk.directory.write_manifest
            write_with_room(log.make_room, write, self._topic, manifest)
            self.is_missing = False

    def _write_after(self, delay_s: float) -> None:
        if isinstance(self._log, Log) and not self._log.is_closed and not self._due:
            self._due = True
            self._disk.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._due = False
        if isinstance(self._log, Log) and not self._log.is_closed:
            self.try_write()
