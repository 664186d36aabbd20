"""What a body must be: an object of a type, or what a function makes of it.

    Consumer("orders", "billing", type=Order)      # JSON, validated by msgspec
    Consumer("orders", "billing", codec=decode)    # a function of bytes; ValueError: not valid

msgspec is imported when a type is given; nothing else of the client needs it. Knows no messages.
"""

from collections.abc import Callable
from typing import Any

from pumpline.client.errors import MissingExtraError

Decode = Callable[[bytes], Any]


class InvalidBodyError(ValueError):
    """A body is not what the consumer expects; the text says why."""


def new_decode(kind: object, codec: Decode | None) -> Decode | None:
    """What makes a value of a body, or raises InvalidBodyError; None if neither is given."""
    if codec is not None:
        if kind is not None:
            raise ValueError("a consumer has a type or a codec, not both")
        if not callable(codec):
            raise TypeError(f"a codec is a function of bytes, not {type(codec).__name__}")
        return _checked(codec, ValueError)
    return None if kind is None else _json_decode(kind)


def _json_decode(kind: Any) -> Decode:
    try:
        import msgspec  # here: the client works without it
    except ImportError:
        raise MissingExtraError(
            "a consumer with a type needs msgspec: pip install msgspec"
        ) from None
    try:
        decoder = msgspec.json.Decoder(kind)
        is_custom = isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError as error:
        raise TypeError(f"type={kind!r} is no type that msgspec can validate: {error}") from None
    if is_custom:
        raise TypeError(
            f"type={kind!r} is no type that msgspec can validate: use a dataclass, a TypedDict or "
            "a msgspec.Struct; or a function of bytes, as codec"
        )
    return _checked(decoder.decode, msgspec.MsgspecError, ValueError, RecursionError)


def _checked(decode: Decode, *invalid: type[Exception]) -> Decode:
    def checked(body: bytes) -> Any:
        try:
            return decode(body)
        except invalid as error:
            raise InvalidBodyError(str(error) or type(error).__name__) from error

    return checked
