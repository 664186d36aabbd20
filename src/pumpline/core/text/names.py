"""Names of topics and channels, and Go's way of quoting a string in an error text."""

import re

EPHEMERAL_SUFFIX = "#ephemeral"
DEAD_LETTER_SUFFIX = ".dlq"
NAME_CHARS_MAX = 64

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_GO_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def is_valid_name(name: str) -> bool:
    return 1 <= len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL_SUFFIX)


def is_dead_letter_topic(name: str) -> bool:
    """Dead letters have no dead letters."""
    return name.endswith(DEAD_LETTER_SUFFIX)


def dead_letter_topic_of(topic: str) -> str:
    """Where dead letters of `topic` go unless somebody says otherwise. It is no valid name if
    `topic` is ephemeral, or too long."""
    return topic + DEAD_LETTER_SUFFIX


def go_quote(raw: bytes) -> str:
    """What Go's `%q` prints for these bytes."""
    pieces = []
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if char in _GO_ESCAPES:
            pieces.append(_GO_ESCAPES[char])
        elif 0xDC80 <= code <= 0xDCFF:
            pieces.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            pieces.append(char)
        elif code < 0x80:
            pieces.append(f"\\x{code:02x}")
        elif code < 0x10000:
            pieces.append(f"\\u{code:04x}")
        else:
            pieces.append(f"\\U{code:08x}")
    return '"' + "".join(pieces) + '"'
