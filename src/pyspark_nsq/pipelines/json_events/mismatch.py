"""Finds the reason why a message does not fit the schema, for the quarantine.

Only messages that Spark's parser has rejected are examined, in plain Python, one by one. The reason
names the field. Knows bytes and types; must not know Spark sessions or files.
"""

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampType,
)

from pyspark_nsq.pipelines.json_events.faults import NAMES, Faulty, load

_INTEGER_BITS: dict[type[DataType], int] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}


def reason(body: bytes, schema: StructType) -> str:
    """The reason, in one line."""
    try:
        value = load(body)
    except Faulty as fault:
        return str(fault)
    return mismatch(value, schema) or "does not fit the schema"


def mismatch(value: object, kind: DataType, where: str = "") -> str | None:
    """Describe the first place where the value has another type; None if it has none."""
    if value is None:
        return None
    if isinstance(kind, StructType) and isinstance(value, dict):
        fields = ((field.name, field.dataType) for field in kind.fields)
        return _first(mismatch(value.get(n), k, f"{where}.{n}".lstrip(".")) for n, k in fields)
    if isinstance(kind, MapType) and isinstance(value, dict):
        return _first(mismatch(v, kind.valueType, f"{where}.{n}") for n, v in value.items())
    if isinstance(kind, ArrayType) and isinstance(value, list):
        found = (mismatch(v, kind.elementType, f"{where}[{n}]") for n, v in enumerate(value))
        return _first(found)
    if _fits(value, kind):
        return None
    return f"{where}: {NAMES[type(value)]} where {kind.simpleString()} is expected"


def _first(found: Iterable[str | None]) -> str | None:
    return next((text for text in found if text), None)


def _fits(value: object, kind: DataType) -> bool:
    bits = _INTEGER_BITS.get(type(kind))
    if bits is not None:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and -(1 << bits - 1) <= value < 1 << bits - 1  # type: ignore[operator]
    if isinstance(kind, FloatType | DoubleType | DecimalType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, DateType | TimestampType):
        return isinstance(value, str)
    # A string column takes any scalar: the parser keeps its text.
    return not isinstance(kind, StructType | ArrayType | MapType)
