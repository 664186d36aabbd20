"""The publish tokens that a topic remembers, so that a publish can be repeated safely.

A publish over HTTP may carry a publish token. The first publish with a token is carried out; a
repeated one gets the same answer and publishes nothing. While the first is under way, the others
wait for its outcome; if it fails, its token is forgotten. The last `--max-publish-tokens` are
remembered, across restarts:

- a token is written in one batch with its messages, so a kill leaves both or neither;
- tokens older than the newest segments of the log are in files of their own (`log.publish_tokens`),
  written only once the messages are synced, and on the disk before their segment is retired;
- a start reads the files, then the batches of the log that the files do not cover.

An ephemeral topic remembers tokens in memory only. Emptying, expiring or retiring messages has no
effect here; deleting the topic forgets everything. Knows logs and files; must not know topics.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from pumpline.log.completion import Completion, completed
from pumpline.log.log import Log
from pumpline.log.publish_tokens import (
    FILE,
    OLD_FILE,
    Entry,
    PublishTokenFile,
    read_publish_tokens,
)
from pumpline.log.ring import Ring
from pumpline.nsqd.storage.disk import Disk

UNWRITTEN_MAX = 1000  # tokens that only the log has; then they are written to the file

_LOG = logging.getLogger(__name__)


class StoredPublishTokens(NamedTuple):
    """What a start finds."""

    tokens: list[Entry]  # oldest first
    upto: int  # the file has no tokens of the log from there on
    file: PublishTokenFile | None


class PublishTokens:
    """The tokens of one topic; few topics have any."""

    __slots__ = (
        "_completions",
        "_count_max",
        "_covered_upto",
        "_disk",
        "_file",
        "_known",
        "_log",
        "_order",
        "_recovering",
        "_retire_again",
        "_synced_upto",
        "_topic",
        "_unwritten",
        "_upto",
        "forgotten_count",
        "repeat_count",
    )

    def __init__(self, topic: str, log: Log | Ring, disk: Disk, *, count_max: int) -> None:
        self.repeat_count = 0  # publishes answered without publishing
        self.forgotten_count = 0  # tokens, to make room for newer ones
        self._topic = topic
        self._log = log
        self._disk = disk
        self._count_max = count_max
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque()  # the known ones, oldest first
        self._completions: dict[bytes, Completion] = {}  # of publishes that are under way
        # The first fsync, if a kill left messages that may be unsynced. None: they are synced.
        self._recovering: Completion | None = None
        self._unwritten: deque[Entry] = deque(maxlen=max(count_max, 1))  # known, not in the file
        self._upto = 0  # what the file says
        self._covered_upto = 0  # what it said before the next fsync began, or the one under way
        self._synced_upto = 0  # what it says on the disk
        self._file: PublishTokenFile | None = None
        self._retire_again: Callable[[], None] | None = None  # see `may_retire`

    def __len__(self) -> int:
        return len(self._known)

    def restore(self, stored: StoredPublishTokens) -> None:
        """After a restart."""
        for end, token in stored.tokens:
            self._remember(token)
            if end > stored.upto:
                self._unwritten.append((end, token))
        self.forgotten_count = 0
        self._upto, self._file = stored.upto, stored.file
        if self._file is not None:  # its writer may have been killed before an fsync
            self._sync_soon(self._file)
        if self._disk.fsyncs.group_commit and self._log.unsynced:
            self._recovering = Completion()

    def outcome(self, token: bytes) -> Completion | None:
        """The outcome of the publish with this token, which may be under way.

        None: there was none. Then the token may be published; OSError if it cannot be remembered.
        """
        completion = self._completions.get(token)
        if completion is None and token in self._known:
            completion = self._recovering
            if completion is None:
                completion = completed()
        if completion is not None:
            self.repeat_count += 1
        else:
            self.prepare()
        return completion

    def prepare(self) -> None:
        """A new token is about to be published; OSError if it cannot be remembered."""
        if self._file is None and self._count_max:
            self._create_file()

    def published(self, token: bytes, end: int, completion: Completion) -> bool:
        """A publish with this token, of messages below `end`, is under way. Returns whether its
        batch is to have the token."""
        if self._count_max:
            self._completions[token] = completion
            completion.when_done(partial(self._completed, token, end, completion))
        return bool(self._count_max)

    def _completed(self, token: bytes, end: int, completion: Completion) -> None:
        del self._completions[token]
        if completion.error is None:
            self._remember(token)
            if self._file is not None:
                self._unwritten.append((end, token))

    def _remember(self, token: bytes) -> None:
        if token in self._known or not self._count_max:
            return
        if len(self._order) >= self._count_max:
            self._known.discard(self._order.popleft())
            self.forgotten_count += 1
        self._known.add(token)
        self._order.append(token)

    # -- files --------------------------------------------------------------------------------

    def synced(self, end: int) -> None:
        """All messages below `end` are on disk, and acknowledged."""
        recovering, self._recovering = self._recovering, None
        if recovering is not None:
            recovering.complete(None)
        if self._file is None:
            return
        self._synced_upto, self._covered_upto = self._covered_upto, self._upto
        segments = self._log.segments
        rolled = bool(segments) and segments[-1].first > self._upto
        if rolled or len(self._unwritten) >= UNWRITTEN_MAX:
            self._write(end)
        retire_again, self._retire_again = self._retire_again, None
        if retire_again is not None:
            retire_again()

    def sync_failed(self, reason: str) -> None:
        """The first fsync after a start failed, and is tried again; or the topic is deleted."""
        if self._recovering is not None:
            recovering, self._recovering = self._recovering, Completion()
            recovering.complete(reason)

    def may_retire(self, end: int, otherwise: Callable[[], None]) -> bool:
        """Whether the tokens of all messages below `end` are on the disk. If not, `otherwise` is
        called when they may be."""
        log = self._log
        if self._file is None or isinstance(log, Ring):
            return True
        self._write_below(end)
        if end <= self._synced_upto:
            return True
        self._retire_again = otherwise
        self._disk.appended(log)
        return False

    def retiring(self, end: int) -> OSError | None:
        """All messages below `end`, every one of them acknowledged, are about to be deleted.
        Returns why their tokens could not be written to the file, if so. Waits for an fsync, unless
        `may_retire` was asked before: a full disk cannot wait for a thread."""
        log, file = self._log, self._file
        if file is None or isinstance(log, Ring):
            return None
        error = self._write_below(end)
        if error is None and end > self._synced_upto:
            try:
                log.syncing.sync_now(file.paths)
                self._synced_upto = self._upto
            except OSError as failure:
                self._disk.failed(failure, f"tokens of topic {self._topic}")
                return failure
        return error

    def _write_below(self, end: int) -> OSError | None:
        return self._write(end) if end > self._upto else None

    def close(self) -> bool:
        """Whether the next start need not read the newest segment."""
        if self._completions:
            return False
        if self._file is None:
            return not self._unwritten
        return self._write(self._log.end) is None

    def _create_file(self) -> None:
        """From now on the log has tokens: the file says from where on a start has to read it."""
        log = self._log
        if isinstance(log, Ring) or log.is_closed:
            return
        file = PublishTokenFile(log.directory, count_max=self._count_max)
        upto = log.end  # messages from there on may still be refused
        file.replace(upto, list(self._unwritten), sync=False)
        self._unwritten.clear()
        self._upto, self._file = upto, file
        self._sync_soon(file)

    def _write(self, upto: int) -> OSError | None:
        """Write the tokens of messages below `upto` to the file; returns why not, if it fails."""
        entries: list[Entry] = []
        while self._unwritten and self._unwritten[0][0] <= upto:
            entries.append(self._unwritten.popleft())
        file = self._file
        assert file is not None
        if not entries and upto <= self._upto:
            return None
        try:
            file.append(upto, entries)
        except OSError as error:
            # They are in the log, and will be written with the next.
            self._unwritten.extendleft(reversed(entries))
            self._disk.failed(error, f"tokens of topic {self._topic}")
            return error
        self._upto = max(self._upto, upto)
        self._sync_soon(file)
        return None

    def _sync_soon(self, file: PublishTokenFile) -> None:
        """The file has changed: the next fsync of the log covers it."""
        log = self._log
        for path in file.paths:
            log.sync_also(path)
        if isinstance(log, Log) and not log.syncing.is_running:
            self._covered_upto = self._upto


def load_publish_tokens(
    topic: str, log: Log, names: list[str], *, count_max: int
) -> StoredPublishTokens:
    """The tokens of a topic that has files of these names, and whose log was just opened."""
    has_files = FILE in names or OLD_FILE in names
    stored = read_publish_tokens(log.directory) if has_files else None
    if stored is None:
        tokens = _last(log.recovered.take_tokens(None), count_max)
        if not tokens:
            return StoredPublishTokens([], 0, None)
        # A power failure took the file. The next start may not find them in the log.
        return _written(topic, log, PublishTokenFile(log.directory, count_max=count_max), tokens)
    # A power failure may have taken unsynced messages from the log: forget their tokens too.
    in_file = [entry for entry in stored.tokens if entry[0] <= log.end]
    upto = min(stored.upto, log.end)
    if stored.lost_bytes:
        _LOG.error(
            "TOPIC(%s): %d bytes of its tokens' files make no sense; reading the log from %d on",
            topic,
            stored.lost_bytes,
            upto,
        )
    in_log = log.recovered.take_tokens(upto)
    file = PublishTokenFile(log.directory, count_max=max(count_max, 1), stored=stored)
    if not stored.lost_bytes and stored.upto <= log.end:
        return StoredPublishTokens(_last(in_file, count_max) + in_log, upto, file)
    return _written(topic, log, file, _last(_merged(in_file, in_log), count_max))


def _written(
    topic: str, log: Log, file: PublishTokenFile, tokens: list[Entry]
) -> StoredPublishTokens:
    """These are all tokens there are: write them to the file."""
    try:
        file.replace(log.end, tokens, sync=True)
    except OSError as error:  # a full disk: the next publish with a token tries again
        _LOG.error("TOPIC(%s): cannot write its tokens: %s", topic, error)
        return StoredPublishTokens(tokens, 0, None)
    return StoredPublishTokens(tokens, log.end, file)


def _merged(in_file: Iterable[Entry], in_log: Iterable[Entry]) -> list[Entry]:
    """In the order of the log, each once."""
    ends = {token: end for end, token in (*in_file, *in_log)}
    return sorted(((end, token) for token, end in ends.items()), key=lambda entry: entry[0])


def _last(entries: list[Entry], count: int) -> list[Entry]:
    return entries[max(len(entries) - count, 0) :]
