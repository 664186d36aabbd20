"""Founding: with --sync-every=1, the directory and manifest of a log are on the disk before its
first message is acknowledged. Without them a loss of power leaves nothing that says which messages
of the write-ahead log are of this log.

Meanwhile the messages wait in their publisher, so that those of other logs do not wait for them.
Logs that are new while a sync runs share the next one: a thousand of them take two.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pumpline.log.files import sync_paths
from pumpline.log.log import Log
from pumpline.log.scheduling import Offload

if TYPE_CHECKING:  # a group commit has its founding
    from pumpline.log.group_commit import BatchPublisher


class Founding:
    def __init__(
        self,
        *,
        offload: Offload,
        founded: Callable[["BatchPublisher"], object],
        failed: Callable[["BatchPublisher", OSError], None],
    ) -> None:
        """One of the two is called for each publisher that waits."""
        self._offload = offload
        self._founded = founded
        self._failed = failed
        self._waiting: dict[BatchPublisher, None] = {}
        self._syncing: list[BatchPublisher] = []

    def wait(self, publisher: "BatchPublisher") -> bool:
        """Let the publisher wait if its log is to be founded; returns whether that is so."""
        if not isinstance(publisher.log, Log) or not publisher.log.founding:
            return False
        if publisher not in self._syncing:
            self._waiting[publisher] = None
            self._begin()
        return True

    def take_waiting(self) -> list["BatchPublisher"]:
        """nsqd stops: nobody waits any more."""
        waiting = [*self._syncing, *self._waiting]
        self._waiting.clear()
        self._syncing.clear()
        return waiting

    def _begin(self) -> None:
        if self._syncing or not self._waiting:
            return
        self._syncing, self._waiting = list(self._waiting), {}
        logs = [publisher.log for publisher in self._syncing if isinstance(publisher.log, Log)]
        paths = sorted({path for log in logs for path in log.founding})
        self._offload(lambda: sync_paths(paths), self._done)

    def _done(self, result: BaseException | None) -> None:
        publishers, self._syncing = self._syncing, []
        if isinstance(result, BaseException) and not isinstance(result, OSError):
            raise result
        for publisher in publishers:
            if isinstance(result, OSError):
                self._failed(publisher, result)
            elif isinstance(publisher.log, Log):
                publisher.log.founding = []
                self._founded(publisher)
        self._begin()
