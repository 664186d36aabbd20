"""A topic's publish tokens on disk: the files `tokens` and `tokens.old` in its directory.

Every token is in the batch that it came with (`core.messages.batches`), so the log says which were
used, as far back as it goes. The files have the tokens of messages that were retired from the log,
and save reading all of it on start. Both are runs of records, big-endian:

| field  | type                   | meaning                                                        |
|--------|------------------------|----------------------------------------------------------------|
| count  | u32                    | tokens in this record                                          |
| crc    | u32                    | crc32 of everything after this field                           |
| upto   | u64                    | every token of the log below is here, or was; the rest is in   |
|        |                        | the log from there on                                          |
| tokens | (u64, bytes[16])[count]| offset after the batch it came with, digest                    |

Records are appended to `tokens`; once that has as many tokens as are to be remembered it becomes
`tokens.old`, and replaces the one before. A start ignores a record that is cut short or damaged,
and all after it, and reads their tokens from the log again. Knows files; must not know topics.
"""

import os
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.crc import crc32
from pumpline.core.messages.publish_tokens import TOKEN_BYTES
from pumpline.log.files import append_whole, read_or_set_aside, write_whole

FILE = "tokens"
OLD_FILE = "tokens.old"

_HEAD = Struct(">II")
_UPTO = Struct(">Q")
_TOKEN = Struct(f">Q{TOKEN_BYTES}s")

Entry = tuple[int, bytes]  # offset after its batch, token


class StoredTokens(NamedTuple):
    """The content of the files."""

    tokens: list[Entry]
    upto: int
    newer_count: int  # of tokens in the newer file
    size_bytes: int  # of the newer file
    lost_bytes: int  # that make no sense


class PublishTokenFile:
    def __init__(
        self, directory: str, *, count_max: int, stored: StoredTokens | None = None
    ) -> None:
        """`stored` is the content of the files. If it is damaged, or there are none, call `replace`
        first."""
        self.path = os.path.join(directory, FILE)
        self._old_path = os.path.join(directory, OLD_FILE)
        self.paths = [self.path, self._old_path, directory]  # that an fsync has to cover
        self._count_max = count_max
        self._count = stored.newer_count if stored else 0
        self._size_bytes = stored.size_bytes if stored else 0

    def append(self, upto: int, tokens: list[Entry]) -> None:
        """OSError, and no change, if that cannot be."""
        if self._count >= self._count_max:
            os.replace(self.path, self._old_path)
            self._count = self._size_bytes = 0
        data = _record(upto, tokens)
        if os.path.exists(self.path) and os.path.getsize(self.path) != self._size_bytes:
            os.truncate(self.path, self._size_bytes)  # part of a record, when the disk was full
        append_whole(self.path, data)
        self._count += len(tokens)
        self._size_bytes += len(data)

    def replace(self, upto: int, tokens: list[Entry], *, sync: bool) -> None:
        """Replace the content of both files."""
        data = _record(upto, tokens)
        write_whole(self.path, data, sync=sync)
        self._count, self._size_bytes = len(tokens), len(data)
        if os.path.exists(self._old_path):
            os.unlink(self._old_path)


def read_publish_tokens(directory: str) -> StoredTokens | None:
    """The content of a topic's files; None if there are none."""
    tokens: list[Entry] = []
    upto = count = size_bytes = lost_bytes = 0
    found = False
    for name in (OLD_FILE, FILE):
        try:
            data = read_or_set_aside(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        found = True
        decoded, decoded_upto, used = _decode(data)
        if not lost_bytes:  # else the log is to be read from there on
            upto = max(upto, decoded_upto)
        lost_bytes += len(data) - used
        count, size_bytes = len(decoded), used
        tokens += decoded
        if name == OLD_FILE:
            count = size_bytes = 0
    return StoredTokens(tokens, upto, count, size_bytes, lost_bytes) if found else None


def _record(upto: int, tokens: list[Entry]) -> bytes:
    payload = _UPTO.pack(upto) + b"".join(_TOKEN.pack(end, token) for end, token in tokens)
    return _HEAD.pack(len(tokens), crc32(payload)) + payload


def _decode(data: bytes) -> tuple[list[Entry], int, int]:
    """The tokens of the valid records at the start, the last `upto`, and the bytes they take."""
    tokens: list[Entry] = []
    upto = at = 0
    while len(data) - at >= _HEAD.size + _UPTO.size:
        count, crc = _HEAD.unpack_from(data, at)
        payload_at = at + _HEAD.size
        end = payload_at + _UPTO.size + count * _TOKEN.size
        if end > len(data) or crc32(memoryview(data)[payload_at:end]) != crc:
            break
        upto = _UPTO.unpack_from(data, payload_at)[0]
        tokens += _TOKEN.iter_unpack(memoryview(data)[payload_at + _UPTO.size : end])
        at = end
    return tokens, upto, at
