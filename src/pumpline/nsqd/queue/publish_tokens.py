"""What a topic remembers of publish tokens, so that a publish can be repeated without harm.

A publish over HTTP may carry a publish token. The first publish with a token is carried out; any
other gets the same answer, and does nothing. While the first is under way the others wait for its
outcome; if it fails, its token is forgotten. The last `--max-publish-tokens` of a topic are
remembered, across restarts:

- a token is written in one batch with its messages, so after a kill either both are there or none;
- tokens older than the newest segments of the log are in files of their own (`log.publish_tokens`),
  written only once the messages are synced, and before their segment is retired;
- on start the files are read, then those batches of the log that the files do not cover.

An ephemeral topic remembers in memory only. The topic's messages may be emptied, expired or retired
without any effect here; deleting the topic forgets everything.
"""

import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pumpline.log.completion import Completion, completed
from pumpline.log.publish_tokens import Entry, PublishTokenFile
from pumpline.nsqd.storage.publish_tokens import StoredPublishTokens

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic

FILED_AT_ONCE = 1000  # tokens that are in the log only, after which they are filed


class PublishTokens:
    """The tokens of one topic; few topics have any."""

    __slots__ = (
        "_count_max",
        "_file",
        "_known",
        "_order",
        "_pending",
        "_recovering",
        "_topic",
        "_unfiled",
        "_upto",
        "forgotten_count",
        "repeat_count",
    )

    def __init__(self, topic: "Topic", *, count_max: int) -> None:
        self.repeat_count = 0  # publishes answered without publishing
        self.forgotten_count = 0  # tokens, to make room for newer ones
        self._topic = topic
        self._count_max = count_max
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque()  # the known ones, oldest first
        self._pending: dict[bytes, Completion] = {}  # published, with an outcome to come
        # Of what a killed process left, perhaps unsynced, until it is synced. None: it is.
        self._recovering: Completion | None = None
        self._unfiled: deque[Entry] = deque(maxlen=max(count_max, 1))  # known, in the log only
        self._upto = 0  # what the file says
        self._file: PublishTokenFile | None = None

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, token: bytes) -> bool:
        """Whether there was a publish with it, which may still be under way."""
        return token in self._pending or token in self._known

    def restore(self, stored: StoredPublishTokens) -> None:
        """After a restart."""
        for end, token in stored.tokens:
            self._remember(token)
            if end > stored.upto:
                self._unfiled.append((end, token))
        self.forgotten_count = 0
        self._upto, self._file = stored.upto, stored.file
        if self._topic.disk.fsyncs.group_commit and self._topic.log.unsynced:
            self._recovering = Completion()

    def outcome(self, token: bytes) -> Completion | None:
        """The outcome, perhaps to come, of the publish with this token; None if there was none.

        Then it may be published, followed by `put`; OSError if it cannot be remembered.
        """
        completion = self._pending.get(token)
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
        """A new token is about to be put; OSError if it cannot be remembered."""
        if self._file is None and self._count_max and not self._topic.exiting:
            self._create_file()

    def put(self, token: bytes) -> None:
        """What was put in the topic last has this token."""
        if self._count_max:
            end = self._topic.publishing.add_token(token)
            completion = self._pending[token] = self._topic.publishing.completion()
            completion.when_done(partial(self._completed, token, end, completion))

    def _completed(self, token: bytes, end: int, completion: Completion) -> None:
        del self._pending[token]
        if completion.error is None:
            self._remember(token)
            if self._file is not None:
                self._unfiled.append((end, token))

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
        segments = self._topic.log.segments
        rolled = bool(segments) and segments[-1].first > self._upto
        if rolled or len(self._unfiled) >= FILED_AT_ONCE:
            self._write(end)

    def sync_failed(self, reason: str) -> None:
        """The fsync of what was there at the start failed, and is tried again; or the topic is
        deleted."""
        if self._recovering is not None:
            recovering, self._recovering = self._recovering, Completion()
            recovering.complete(reason)

    def retiring(self, end: int) -> OSError | None:
        """All messages below `end`, every one of them acknowledged, are about to be deleted;
        returns why their tokens could not be filed, if so."""
        if self._file is not None and end > self._upto:
            return self._write(end)
        return None

    def close(self) -> bool:
        """Whether the newest segment needs no reading on the next start."""
        if self._pending:
            return False
        if self._file is None:
            return not self._unfiled
        return self._write(self._topic.log.end) is None

    def _create_file(self) -> None:
        """From now on the log has tokens: the file says from where on it is to be read on start."""
        topic = self._topic
        if topic.ephemeral:
            return
        path = topic.disk.directory.topic_path(topic.name)
        file = PublishTokenFile(path, count_max=self._count_max)
        upto = topic.log.end  # what is not acknowledged yet may be taken back
        file.replace(upto, list(self._unfiled), sync=False)
        self._unfiled.clear()
        self._upto, self._file = upto, file
        self._sync(file)

    def _write(self, upto: int) -> OSError | None:
        """File what came with messages below `upto`; returns why that could not be, if so."""
        entries: list[Entry] = []
        while self._unfiled and self._unfiled[0][0] <= upto:
            entries.append(self._unfiled.popleft())
        error = self._append(upto, entries) if entries or upto > self._upto else None
        if error is None:
            self._upto = max(self._upto, upto)
        else:
            self._unfiled.extendleft(reversed(entries))
        return error

    def _append(self, upto: int, entries: list[Entry]) -> OSError | None:
        file = self._file
        assert file is not None
        try:
            file.append(upto, entries)
        except OSError as error:
            # They are in the log, and will be filed with the next.
            self._topic.disk.health.failed(error, f"tokens of topic {self._topic.name}")
            return error
        self._sync(file)
        return None

    def _sync(self, file: PublishTokenFile) -> None:
        log = self._topic.log
        log.sync_also(file.path)
        log.sync_also(os.path.dirname(file.path))
