"""How nsq_tail prints a message: as NSQ's tool, as JSON, or by a format with kcat's escapes.

Pure: a `TailedMessage` in, bytes out.
"""

import base64
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

NS_PER_MS = 1_000_000

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART = re.compile(r"%(.)|\\(.)|([^%\\]+)|([%\\])", re.DOTALL)


class TailedMessage(NamedTuple):
    topic: str
    node: str
    id: str
    timestamp_ns: int
    attempts: int
    body: bytes
    offset: int | None = None  # unknown of a message that came over a channel


Print = Callable[[TailedMessage], bytes]

_FIELDS: dict[str, Print] = {
    "s": lambda each: each.body,
    "S": lambda each: b"%d" % len(each.body),
    "T": lambda each: b"%d" % (each.timestamp_ns // NS_PER_MS),
    "t": lambda each: each.topic.encode(),
    "o": lambda each: b"-1" if each.offset is None else b"%d" % each.offset,
    "i": lambda each: each.id.encode(),
    "a": lambda each: b"%d" % each.attempts,
    "n": lambda each: each.node.encode(),
    "%": lambda each: b"%",
}


def format_fault(text: str) -> str:
    for match in _PART.finditer(text):
        if match[1] and match[1] not in _FIELDS:
            return f"--format: there is no %{match[1]}; there are %{', %'.join(_FIELDS)}"
        if match[2] and match[2] not in _ESCAPES:
            return f"--format: there is no \\{match[2]}"
        if match[4]:
            return f"--format ends in {match[4]}"
    return ""


def printer(*, format: str, as_json: bool, print_topic: bool) -> Print:
    if as_json:
        return as_json_line
    if format:
        return _by_format(format)
    return _with_topic if print_topic else _plain


def _plain(message: TailedMessage) -> bytes:
    return message.body + b"\n"


def _with_topic(message: TailedMessage) -> bytes:
    return b"%b | %b\n" % (message.topic.encode(), message.body)


def as_json_line(message: TailedMessage) -> bytes:
    fields: dict[str, object] = {
        "topic": message.topic,
        "node": message.node,
        "offset": message.offset,
        "id": message.id,
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return msgspec.json.encode(fields) + b"\n"


def _by_format(text: str) -> Print:
    parts: list[bytes | Print] = []
    for match in _PART.finditer(text):
        field, escape, literal, _ = match.groups()
        if field:
            parts.append(_FIELDS[field])
        else:
            parts.append(_ESCAPES[escape] if escape else literal.encode())
    return lambda message: _joined(parts, message)


def _joined(parts: Sequence[bytes | Print], message: TailedMessage) -> bytes:
    return b"".join([part if isinstance(part, bytes) else part(message) for part in parts])
