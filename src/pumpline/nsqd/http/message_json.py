"""Messages as JSON, in pieces of bounded size.

A piece has the beginnings of messages and about PIECE_BYTES of their bodies. A body of control
characters takes six times its size, so a piece has at most 12 x PIECE_BYTES, however large the
messages are. `place` says where the next piece begins: messages can be dropped between two pieces,
and encoding can be resumed when they are read again.

For threads: msgspec and base64 do not release the interpreter, and a piece takes less than 1 ms.
Pure: knows no log, no channels and no requests.
"""

import base64
import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pumpline.log.messages import LoggedMessage

PIECE_BYTES = 24 << 10  # a multiple of 3, as base64 without padding needs
_ENTRY_BYTES = 128  # of a message's JSON, beside its body
_CHECK_BYTES = 256 << 10

_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class MessageState(NamedTuple):
    """Of a message in a channel."""

    name: str
    attempts: int
    due_ns: int


class PiecePlace(NamedTuple):
    """In a sequence of messages."""

    message: int  # its index
    body_at: int = 0  # of the body, so many bytes are encoded


class _Beginning(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The JSON of a message, up to its body."""

    offset: int
    id: str
    timestamp: int
    attempts: int
    bytes: int
    state: str = ""  # in a channel
    deferred_until: int = 0


class MessagePieces:
    def __init__(
        self,
        messages: Sequence[LoggedMessage],
        *,
        states: Mapping[int, MessageState],
        body_max: int,
        opening: Callable[[LoggedMessage], bytes],
        closing: bytes = b"",
        body_at: int = 0,
    ) -> None:
        """`states` by offset; `opening` and `closing` enclose each message. With `body_at`, the
        first message is encoded from there on."""
        self.place = PiecePlace(0, body_at)
        self._messages = messages
        self._states = states
        self._body_max = body_max
        self._opening = opening
        self._closing = closing
        self._is_text = body_at > 0 and _is_text(messages[0].body)

    @property
    def is_over(self) -> bool:
        return self.place.message == len(self._messages)

    def next(self) -> bytes:
        """The next piece; empty after the last."""
        parts: list[bytes] = []
        room_bytes = PIECE_BYTES
        while room_bytes > 0 and not self.is_over:
            index, at = self.place
            message = self._messages[index]
            body = message.body
            if not at:
                self._is_text = _is_text(body)
                parts += (self._opening(message), self._beginning(message))
                room_bytes -= _ENTRY_BYTES
            limit = min(self._body_max, len(body))
            end = min(at + PIECE_BYTES, limit)
            if self._is_text:
                end, limit = _character_start(body, end), _character_start(body, limit)
                parts.append(msgspec.json.encode(body[at:end].decode())[1:-1])
            else:
                parts.append(base64.b64encode(body[at:end]))
            room_bytes -= end - at
            self.place = PiecePlace(index, end)
            if end == limit:
                parts.append(b'","truncated":true}' if len(body) > self._body_max else b'"}')
                parts.append(self._closing)
                self.place = PiecePlace(index + 1)
        return b"".join(parts)

    def _beginning(self, message: LoggedMessage) -> bytes:
        state = self._states.get(message.offset) or MessageState("", 1, message.due_ns)
        entry = _Beginning(
            offset=message.offset,
            id=message.id,
            timestamp=message.timestamp_ns,
            attempts=state.attempts,
            bytes=len(message.body),
            state=state.name,
            deferred_until=state.due_ns,
        )
        field = b',"body":"' if self._is_text else b',"body_base64":"'
        return msgspec.json.encode(entry)[:-1] + field


def _is_text(body: bytes) -> bool:
    """In slices: text of a large body would take four times its size."""
    if body.isascii():
        return True
    decoder = _UTF8_DECODER()
    view = memoryview(body)
    try:
        for at in range(0, len(body), _CHECK_BYTES):
            decoder.decode(view[at : at + _CHECK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _character_start(body: bytes, at: int) -> int:
    """The last position up to `at` where a character of UTF-8 begins, or the end."""
    while at < len(body) and body[at] & 0xC0 == 0x80:
        at -= 1
    return at
