"""When a log's segments are synced, who waits for that, and what happens when it fails.

`nsqd.storage.fsync` decides when, and sees a log as this. With --sync-every=1 so does
`log.flusher`, for logs that nobody else syncs (`is_claimed`). Then everything that a failed fsync
may have lost is in memory, and what was acknowledged of it also in the write-ahead log: it is
written again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pumpline.log.completion import EXITING, Completion
from pumpline.log.files import sync_paths

if TYPE_CHECKING:  # a log makes its own
    from pumpline.log.log import Log

Mark = tuple[int, int, int] | None


class LogSync:
    __slots__ = (
        "_covered",
        "_log",
        "_mark",
        "_paths",
        "_waiting",
        "failed",
        "on_failed",
        "on_synced",
    )

    def __init__(self, log: "Log") -> None:
        self.on_synced: Callable[[int], None] = lambda end: None  # all below is on the disk
        self.on_failed: Callable[[str], None] = lambda reason: None
        self.failed: Callable[[OSError], str] = str  # notes the error; returns the reason
        self._log = log
        self._mark = log.mark()  # all before was synced
        self._waiting: list[Completion] = []
        self._paths: list[str] = []  # that an fsync which is under way covers
        self._covered: tuple[Mark, int, list[Completion]] = self._mark, log.written, []

    def begin_again(self) -> None:
        """The segments were cut back right after they were opened."""
        self._mark = self._log.mark()
        self._covered = self._mark, self._log.written, []

    @property
    def unsynced(self) -> int:
        return self._log.unsynced

    @property
    def is_running(self) -> bool:
        """An fsync is under way."""
        return bool(self._paths)

    def sync_now(self, paths: list[str]) -> None:
        """Sync these, and wait for that; OSError when they cannot be."""
        sync_paths(paths)
        self._log.dirty.difference_update(paths)

    @property
    def is_claimed(self) -> bool:
        """An fsync is under way, or somebody waits for the next."""
        return bool(self._paths or self._waiting)

    def completion(self) -> Completion:
        """The outcome of the next fsync, or of the one under way if nothing was written since."""
        completion = Completion()
        if not self._log.unsynced and not self._paths:
            completion.complete(None)
        elif self._log.unsynced:
            self._waiting.append(completion)
        else:
            self._covered[2].append(completion)
        return completion

    def take_dirty(self) -> list[str]:
        """The paths to sync; none if there is nothing to be synced now. One sync runs at a time:
        `sync_done` is of the last paths that were taken."""
        log = self._log
        if log.is_closed or log.is_unsound or self._paths or not log.dirty:
            return []
        self._covered = log.mark(), log.written, self._waiting
        self._waiting = []
        self._paths = log.take_dirty()
        return self._paths

    def note_clean(self) -> None:
        """Nobody syncs the log. If nothing is to be synced, all that is written is on the disk."""
        log = self._log
        if not (log.is_closed or log.is_unsound or log.dirty):
            self._mark = log.mark()
            log.note_synced(log.written)
            self.on_synced(log.written)

    def take_all_dirty(self) -> list[str]:
        """As `take_dirty`, for a stop: with what an fsync covers that is under way, and may fail
        when it is too late."""
        return [*self._paths, *self._log.take_dirty()]

    def sync_done(self, paths: list[str], error: OSError | None) -> None:
        log = self._log
        assert paths == self._paths, "one sync at a time"
        self._paths = []
        mark, end, waiting = self._covered
        self._covered = mark, end, []
        if log.is_closed:
            _complete(waiting, EXITING)
        elif error is None:
            self._mark = mark
            log.note_synced(end)
            _complete(waiting, None)
            self.on_synced(end)
        else:
            log.sync_failed(paths)
            if log.keeps_unsynced:
                log.write_again(self._mark)
            reason = self.failed(error)
            waiting += self._waiting  # what they wait for follows on what was lost
            self._waiting = []
            _complete(waiting, reason)
            self.on_failed(reason)

    def close(self) -> None:
        waiting, self._waiting = self._waiting, []
        _complete(waiting, EXITING)


def _complete(completions: list[Completion], error: str | None) -> None:
    for completion in completions:
        completion.complete(error)
