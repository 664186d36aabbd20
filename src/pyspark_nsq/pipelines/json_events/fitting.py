"""Judges whether a value of a body fits its place: a column of a known type, or what was learned.

A value fits if it can be a value of its column without being changed; a number with a fraction
becomes the nearest DOUBLE or FLOAT. A key without a column is left out, refused, or learned
(`shape`), as `unknown` says. Knows types; must not know Spark sessions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_nsq.pipelines.json_events.faults import NAMES, Faulty

FIELDS_MAX = 2000  # stops keys that are data, as in {"user-17": ...}, from becoming columns
NAME_CHARS_MAX = 1000
CORRUPT = "_corrupt_record"  # where Spark's parser puts a text that it cannot parse
LEAVE_OUT, REFUSE, LEARN = "leave out", "refuse", "learn"  # what is done with unknown keys

BOOLEAN, WHOLE, LONG, HUGE, FRACTION, TEXT, OBJECT, LIST = (1 << bit for bit in range(8))
DECIMAL_DIGITS_MAX = 38
FLOAT_MAX = 3.4028235677973366e38  # what is larger is infinite as a FLOAT
TIMESTAMP_S_MAX = (1 << 63) // 1_000_000
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_INFINITY = float("inf")


@dataclass(slots=True)
class Shape:
    """One place: a column, if `kind` is its type, or else what was learned of bodies."""

    judge: "Judge"
    kind: DataType | None = None
    fields: dict[str, "Shape"] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)  # names by what Spark takes for the same
    inner: "Shape | None" = None  # of the elements of a list, or the values of a map
    seen: int = 0
    unknown: str = LEARN
    is_top: bool = False


# Raises Faulty, or returns whether the value is news for the shape.
Judge = Callable[[Any, Shape], bool]


@lru_cache(10_000)
def fold(name: str) -> str:
    """Equal for names that Spark takes for the same: it compares the upper and lower case of each
    character, so that it takes the Kelvin sign for k, and a long s for s."""
    if name.isascii():
        return name.lower()
    return "".join(_lower(_upper(character)) for character in name)


def _upper(character: str) -> str:
    upper = character.upper()
    return upper if len(upper) == 1 else character


def _lower(character: str) -> str:
    return character.lower()[0]


def flag(value: object) -> int:
    """What a value is; Faulty for a number that no type keeps."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 63:
            if abs(value) >= 10**DECIMAL_DIGITS_MAX:
                raise Faulty(f"a whole number of more than {DECIMAL_DIGITS_MAX} digits")
            return HUGE
        return WHOLE if float(value) == value else LONG
    if isinstance(value, Decimal):
        _double(value, _ANY)
        return FRACTION
    return _FLAGS[type(value)]


_FLAGS: dict[type, int] = {bool: BOOLEAN, str: TEXT, dict: OBJECT, list: LIST}


def says_nothing(value: object) -> bool:
    """Whether a value has no scalar in it, so that it says nothing of a type."""
    if isinstance(value, dict):
        return all(says_nothing(inner) for inner in value.values())
    if isinstance(value, list):
        return all(says_nothing(inner) for inner in value)
    return value is None


def is_object(value: Any, shape: Shape) -> bool:
    if type(value) is not dict:
        raise _wrong(value, shape)
    fields = shape.fields
    found = False
    strange: dict[str, str] = {}  # keys without a column, by what Spark takes for the same
    for key, inner in value.items():
        if inner is None:
            continue  # as if the key were not there
        known = fields.get(key)
        try:
            if known is not None:
                found |= known.judge(inner, known)
            else:
                found |= _unknown(key, inner, shape, strange)
        except Faulty as fault:
            fault.path.append(key)
            raise
    return found


def _unknown(key: str, value: object, shape: Shape, strange: dict[str, str]) -> bool:
    there = shape.folded.get(fold(key))
    if there is not None:
        raise Faulty(f"the table has the column {there}, which differs only in case")
    if shape.unknown == LEAVE_OUT:
        return False
    twin = strange.setdefault(fold(key), key)
    if twin != key:
        raise Faulty(f"differs from {twin} only in case")
    if not key:
        raise Faulty("an empty key")
    if len(key) > NAME_CHARS_MAX:
        raise Faulty(f"a key of more than {NAME_CHARS_MAX:,} characters")
    if shape.is_top and fold(key) == CORRUPT:
        raise Faulty("Spark's parser uses this key for its own ends")
    if says_nothing(value):
        return False
    any_kind(value, _ANY)
    if shape.unknown == REFUSE:
        raise Faulty(too_many())
    return True


def is_list(value: Any, shape: Shape) -> bool:
    if type(value) is not list:
        raise _wrong(value, shape)
    inner = shape.inner or _ANY
    found = False
    for number, element in enumerate(value):
        if element is not None:
            try:
                found |= inner.judge(element, inner)
            except Faulty as fault:
                fault.path.append(number)
                raise
    return found


def is_map(value: Any, shape: Shape) -> bool:
    if type(value) is not dict:
        raise _wrong(value, shape)
    inner = shape.inner or _ANY
    found = False
    for key, each in value.items():
        if each is not None:
            try:
                found |= inner.judge(each, inner)
            except Faulty as fault:
                fault.path.append(key)
                raise
    return found


def any_kind(value: Any, shape: Shape) -> bool:
    found = not shape.seen & flag(value)
    if type(value) is dict:
        found |= is_object(value, shape)
    elif type(value) is list:
        found |= is_list(value, shape)
    return found


# -- judging: scalars -----------------------------------------------------------------------------


def _boolean(value: Any, shape: Shape) -> bool:
    if type(value) is not bool:
        raise _wrong(value, shape)
    return False


def _integer(value: Any, shape: Shape) -> bool:
    half = 1 << _BITS[type(shape.kind)] - 1  # type: ignore[index]
    if type(value) is not int:
        raise _wrong(value, shape)
    if not -half <= value < half:
        raise Faulty(_beyond(shape))
    return False


def _double(value: Any, shape: Shape) -> bool:
    """A fraction becomes the nearest DOUBLE. A whole number has to be exact."""
    if type(value) is Decimal:
        nearest = float(value)
        if nearest in (_INFINITY, -_INFINITY):
            raise Faulty("a number beyond the largest DOUBLE")
        if not nearest and value:
            raise Faulty("a number below the smallest DOUBLE")
    elif type(value) is not int:
        raise _wrong(value, shape)
    elif not -(1 << 53) <= value <= 1 << 53 and not _is_exact(value):
        raise Faulty("a whole number that a DOUBLE does not keep exactly")
    return False


def _float(value: Any, shape: Shape) -> bool:
    _double(value, shape)
    if abs(value) >= FLOAT_MAX:
        raise Faulty(_beyond(shape))
    return False


def _decimal(value: Any, shape: Shape) -> bool:
    kind = shape.kind
    assert isinstance(kind, DecimalType)
    if type(value) is not Decimal and type(value) is not int:
        raise _wrong(value, shape)
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    plain = text.rstrip("0")
    exponent += len(text) - len(plain)
    if plain and (-exponent > kind.scale or len(plain) + exponent > kind.precision - kind.scale):
        raise Faulty(f"a number with more digits than {_name(shape)}")
    return False


def _string(value: Any, shape: Shape) -> bool:
    """Spark keeps the JSON text of what is no string, but passes its fractions through DOUBLE."""
    if type(value) is Decimal:
        if not _double(value, shape) and Decimal(repr(float(value))) != value:
            raise Faulty("a number with more digits than a DOUBLE")
    elif type(value) is dict:
        for key, inner in value.items():
            if inner is not None:
                try:
                    _string(inner, shape)
                except Faulty as fault:
                    fault.path.append(key)
                    raise
    elif type(value) is list:
        for number, inner in enumerate(value):
            try:
                _string(inner, shape)
            except Faulty as fault:
                fault.path.append(number)
                raise
    return False


def _text_only(value: Any, shape: Shape) -> bool:
    if type(value) is not str:
        raise _wrong(value, shape)
    return False


def _timestamp(value: Any, shape: Shape) -> bool:
    """A text, or seconds since 1970."""
    if type(value) is int and abs(value) >= TIMESTAMP_S_MAX:
        raise Faulty(_beyond(shape))
    if type(value) is not int and type(value) is not str:
        raise _wrong(value, shape)
    return False


def left_to_spark(value: Any, shape: Shape) -> bool:
    return False


SCALARS: dict[type[DataType], Judge] = {
    BooleanType: _boolean,
    ByteType: _integer,
    ShortType: _integer,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _float,
    DoubleType: _double,
    DecimalType: _decimal,
    StringType: _string,
    DateType: _text_only,
    BinaryType: _text_only,
    TimestampType: _timestamp,
    TimestampNTZType: _text_only,
}
_ANY = Shape(any_kind)  # of a place that nothing is known of


def _is_exact(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _wrong(value: object, shape: Shape) -> Faulty:
    return Faulty(f"{NAMES[type(value)]} where {_name(shape)} is expected")


def _beyond(shape: Shape) -> str:
    return f"a number beyond {_name(shape)}"


def _name(shape: Shape) -> str:
    return "nothing" if shape.kind is None else shape.kind.simpleString()


def too_many(count: int = 1) -> str:
    what = "a new field" if count == 1 else f"{count:,} new fields"
    return f"{what}, and the table would have more than {FIELDS_MAX:,} columns"
