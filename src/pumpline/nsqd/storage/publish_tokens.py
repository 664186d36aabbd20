"""What the data directory knows of a topic's publish tokens, when its log has just been opened.

The files of `log.publish_tokens` are read first, then those batches of the log that the files do
not cover. Knows files and logs; must not know topics.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from pumpline.log.log import Log
from pumpline.log.publish_tokens import Entry, PublishTokenFile, read_publish_tokens

_LOG = logging.getLogger(__name__)


class StoredPublishTokens(NamedTuple):
    """What was found on start."""

    tokens: list[Entry]  # oldest first
    upto: int  # those of the log from there on are not in the file
    file: PublishTokenFile | None


def load_publish_tokens(topic: str, log: Log, *, count_max: int) -> StoredPublishTokens:
    """What the data directory knows of a topic's tokens, right after its log was opened."""
    stored = read_publish_tokens(log.directory)
    if stored is None:
        tokens = _last(log.recovered.take_tokens(None), count_max)
        if not tokens:
            return StoredPublishTokens([], 0, None)
        # A power failure took the file. The next start may not come by them in the log.
        return _filed(topic, log, PublishTokenFile(log.directory, count_max=count_max), tokens)
    # A power failure may have taken unsynced messages from the log: forget their tokens too.
    filed = [entry for entry in stored.tokens if entry[0] <= log.end]
    upto = min(stored.upto, log.end)
    if stored.lost_bytes:
        _LOG.error(
            "TOPIC(%s): %d bytes of its tokens' files make no sense; reading the log from %d on",
            topic,
            stored.lost_bytes,
            upto,
        )
    found = log.recovered.take_tokens(upto)
    file = PublishTokenFile(log.directory, count_max=max(count_max, 1), stored=stored)
    if not stored.lost_bytes and stored.upto <= log.end:
        return StoredPublishTokens(_last(filed, count_max) + found, upto, file)
    return _filed(topic, log, file, _last(_merged(filed, found), count_max))


def _filed(
    topic: str, log: Log, file: PublishTokenFile, tokens: list[Entry]
) -> StoredPublishTokens:
    """These are all there are: write them to the file."""
    try:
        file.replace(log.end, tokens, sync=True)
    except OSError as error:  # a full disk: the next publish with a token tries again
        _LOG.error("TOPIC(%s): cannot write its tokens: %s", topic, error)
        return StoredPublishTokens(tokens, 0, None)
    return StoredPublishTokens(tokens, log.end, file)


def _merged(filed: Iterable[Entry], found: Iterable[Entry]) -> list[Entry]:
    """In the order of the log, each once."""
    ends = {token: end for end, token in (*filed, *found)}
    return sorted(((end, token) for token, end in ends.items()), key=lambda entry: entry[0])


def _last(entries: list[Entry], count: int) -> list[Entry]:
    return entries[max(len(entries) - count, 0) :]
