"""Which JSON messages pass, and which of their fields: --require-json-* and --whitelist-json-field.

Values are passed on in the bytes they came in, and fields in their order, so that large integers
stay what they are. Pure.
"""

from collections.abc import Sequence

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NotAnObject(ValueError):
    """The message is no JSON object."""


class MissingField(ValueError):
    """The field whose value is required is not there."""


class JsonFilter:
    def __init__(
        self, *, whitelist: Sequence[str] = (), required_field: str = "", required_value: str = ""
    ) -> None:
        self._whitelist = frozenset(whitelist)
        self._required_field = required_field
        self._required_value = required_value
        self._required_number = _number(required_value)

    def apply(self, body: bytes) -> bytes | None:
        """What to publish; None for nothing. Raises NotAnObject or MissingField."""
        try:
            fields = _OBJECT.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NotAnObject from None
        if self._required_field and not self._passes(fields):
            return None
        if not self._whitelist:
            return body
        kept = {name: raw for name, raw in fields.items() if name in self._whitelist}
        return msgspec.json.encode(kept)

    def _passes(self, fields: dict[str, msgspec.Raw]) -> bool:
        raw = fields.get(self._required_field)
        if not self._required_value:
            return raw is not None
        if raw is None:
            raise MissingField
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):  # not UTF-8, which only this looks at
            return False
        if isinstance(value, str):
            return value == self._required_value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self._required_number is not None and value == self._required_number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
