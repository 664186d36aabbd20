"""Publish tokens: names that publishers give to their publishes, to be able to repeat them.

A token is 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`. Memory, batches and files have a digest
of it, so that all are of one size. Digests have 128 bits: collisions are negligible.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b

TOKEN_BYTES = 16  # of a digest

_TOKEN = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


def is_valid_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    return blake2b(token.encode(), digest_size=TOKEN_BYTES).digest()


def split_tokens(digests: bytes | memoryview) -> Iterator[bytes]:
    """Digests one by one."""
    for at in range(0, len(digests), TOKEN_BYTES):
        yield bytes(digests[at : at + TOKEN_BYTES])
