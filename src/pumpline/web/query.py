"""Query strings as NSQ reads them: stricter than most about what is malformed.

Pairs are separated by `&` alone, an escape must be `%` and two hexadecimal digits, and the first
of several values counts. Bytes that are no UTF-8 survive as surrogates. Pure.
"""

import re
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)

PAIRS_MAX = 1000  # 64 KiB of short ones with escapes would take 40 ms

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""How a parameter says yes or no."""


class QueryError(ValueError):
    """The query string is malformed; the text says how."""


def parse_query(raw: str) -> dict[str, str]:
    """The first value of each key."""
    if raw.count("&") >= PAIRS_MAX:
        raise QueryError(f"more than {PAIRS_MAX} parameters")
    query: dict[str, str] = {}
    for pair in raw.split("&"):
        if ";" in pair:
            raise QueryError("invalid semicolon separator in query")
        if pair:
            key, _, value = pair.replace("+", " ").partition("=")
            query.setdefault(unescape(key), unescape(value))
    return query


def unescape(text: str) -> str:
    """`text` with its escapes resolved."""
    if "%" not in text:
        return text
    bad = _BAD_ESCAPE.search(text)
    if bad:
        raise QueryError(f'invalid URL escape "{bad[0]}"')
    raw = unquote_to_bytes(text.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")
