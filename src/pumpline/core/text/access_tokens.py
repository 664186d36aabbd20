"""The file of access tokens, which nsqd and everybody who talks to it read.

One token a line, `<token>` or `<token> read`. Empty lines and lines that begin with `#` are left
out. A client uses the first token of the file. Knows the text only; who reads the file says where
it is.
"""

import re
from typing import NamedTuple

FILE_BYTES_MAX = 64 << 10
TOKEN_CHARS = "A-Z a-z 0-9 -._~+/="
READ_ONLY = "read"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # what may stand in the header (RFC 6750)


class TokenLine(NamedTuple):
    number: int  # of the line, from 1
    token: str
    read_only: bool


def is_access_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def parse_access_tokens(data: bytes) -> list[TokenLine]:
    """The tokens of a file; ValueError if there is none, or something else in it."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[1:] not in ([], [READ_ONLY]):
            raise ValueError(f"line {number} is not `<token>` or `<token> {READ_ONLY}`")
        if not is_access_token(words[0]):
            raise ValueError(f"the token of line {number} has characters other than {TOKEN_CHARS}")
        found.append(TokenLine(number, words[0], read_only=len(words) == 2))
    if not found:
        raise ValueError("there is no token in it")
    return found
