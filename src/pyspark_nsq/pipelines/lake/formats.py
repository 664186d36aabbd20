"""The formats of lake tables, whether their libraries are installed, and what types they widen.

Knows names and types; must not know files.
"""

from collections.abc import Callable
from importlib.util import find_spec

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from pyspark_nsq.errors import NsqError

DELTA, ICEBERG = "delta", "iceberg"
LIBRARIES = {DELTA: ("deltalake",), ICEBERG: ("pyiceberg", "sqlalchemy")}

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FLOATS = (FloatType, DoubleType)


def require(kind: str) -> None:
    """Raise NsqError, with what to install, unless the format's library is there."""
    missing = [name for name in LIBRARIES.get(kind, ()) if find_spec(name) is None]
    if missing:
        raise NsqError(
            f"--format {kind} needs {' and '.join(missing)}: pip install 'pumpline[{kind}]'; or "
            "archive to Parquet, which needs no more (--format parquet)"
        )


def is_wider(kind: DataType, news: DataType) -> bool:
    """Whether every value of a type has its place in another, as Iceberg sees it."""
    for family in (_INTEGERS, _FLOATS):
        if isinstance(kind, family) and isinstance(news, family):
            return family.index(type(kind)) < family.index(type(news))
    if isinstance(kind, DecimalType) and isinstance(news, DecimalType):
        return kind.scale == news.scale and kind.precision < news.precision
    return False


def widest(kind: DataType) -> DataType:
    """The type with all numbers in the widest type of their kind, and NULL allowed everywhere."""
    if isinstance(kind, _INTEGERS):
        return LongType()
    if isinstance(kind, _FLOATS):
        return DoubleType()
    return _mapped(kind, widest)


def nullable(kind: DataType) -> DataType:
    """The type with NULL allowed everywhere, as files have it."""
    return _mapped(kind, nullable)


def _mapped(kind: DataType, change: Callable[[DataType], DataType]) -> DataType:
    if isinstance(kind, StructType):
        fields = [StructField(field.name, change(field.dataType)) for field in kind.fields]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(change(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(change(kind.keyType), change(kind.valueType))
    return kind
