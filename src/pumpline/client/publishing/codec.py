"""How `publish_value` makes a body of a value: JSON by msgspec, or a function of the user's.

msgspec is imported when the first value is encoded; nothing else of the producer needs it.
"""

from collections.abc import Callable
from typing import Any

from pumpline.client.errors import MissingExtraError
from pumpline.client.publishing.bodies import Body

Encode = Callable[[Any], Body]


def new_encode(codec: Encode | None) -> Callable[[object], bytes]:
    """TypeError of the result: the codec has not returned bytes."""
    if codec is None:
        return _json_encode
    if not callable(codec):
        raise TypeError(f"a codec is a function that returns bytes, not {type(codec).__name__}")

    def encode(value: object) -> bytes:
        body: object = codec(value)
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a codec returns bytes, not {type(body).__name__}")
        return bytes(body)

    return encode


def _json_encode(value: object) -> bytes:
    try:
        import msgspec  # here: the client works without it
    except ImportError:
        text = "publish_value without a codec needs msgspec: pip install msgspec"
        raise MissingExtraError(text) from None
    return msgspec.json.encode(value)
