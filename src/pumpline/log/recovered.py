"""What a start finds in a log beside its messages: delays, and publish tokens.

They are in the batches. A recovery of the newest segment comes by them; so does the replay of the
write-ahead log (`note`).
"""

import os
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.publish_tokens import split_tokens
from pumpline.log.files import open_file
from pumpline.log.recovery import survey
from pumpline.log.segment import DueTimes, Segment

if TYPE_CHECKING:  # a log makes its own
    from pumpline.log.log import Log

Token = tuple[int, bytes]
"""The end of its batch, and the token."""


class Recovered:
    __slots__ = ("_deferred", "_log", "_tokens")

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._deferred: list[DueTimes] = []  # from the write-ahead log
        self._tokens: list[Token] = []  # likewise

    def note(self, batch: LogBatch) -> None:
        """The batch came from the write-ahead log."""
        if batch.dues:
            self._deferred.append(DueTimes.of(batch))
        if batch.tokens:
            self._tokens += [(batch.end, token) for token in split_tokens(batch.tokens)]

    def take_deferred(self) -> list[DueTimes]:
        """What was published with a delay, as far as a recovery came by it."""
        found: list[DueTimes] = []
        for segment in self._log.segments:
            found += segment.deferred
            segment.deferred = []
        found += self._deferred
        self._deferred = []
        return found

    def take_tokens(self, since: int | None) -> list[Token]:
        """The tokens of batches from offset `since` on, in order; None: as far as a recovery came
        by them. To be asked for right after opening."""
        log = self._log
        found: list[Token] = []
        for segment in log.segments:
            tokens, segment.tokens = segment.tokens, []
            if since is None:
                found += tokens
            elif min(log.limit_of(segment), log.written) > since:
                if segment.unchecked_bytes:
                    tokens = self._survey(segment).tokens
                found += [each for each in tokens if each[0] > since]
        found += [each for each in self._tokens if since is None or each[0] > since]
        self._tokens = []
        return found

    def _survey(self, segment: Segment) -> Segment:
        fd = open_file(segment.path)
        try:
            found, damages = survey(segment, fd, self._log.limit_of(segment))
        finally:
            os.close(fd)
        segment.learn(found)
        self._log.report_damage(damages)
        return found
