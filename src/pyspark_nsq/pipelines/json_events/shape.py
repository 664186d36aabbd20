"""What may be at each place of a body: made from a schema, and taught by the bodies that fit it.

What was learned becomes columns:

| bodies had here | the column is |
|---|---|
| whole numbers that a DOUBLE keeps exactly | `whole`: DOUBLE, or BIGINT |
| larger whole numbers: to 64 bits, to 38 digits | BIGINT, DECIMAL(38,0) |
| numbers with a fraction, and such whole numbers | DOUBLE |
| booleans, strings, objects, lists | BOOLEAN, STRING, STRUCT, ARRAY |
| some of these | STRING, with the JSON text of what is no string |
| null, {} and [] alone | none, until a body has more |

Only a body that fits as a whole teaches anything. Knows types; must not know Spark sessions.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_nsq.pipelines.json_events.faults import Faulty
from pyspark_nsq.pipelines.json_events.fitting import (
    BOOLEAN,
    DECIMAL_DIGITS_MAX,
    FIELDS_MAX,
    FRACTION,
    HUGE,
    LIST,
    LONG,
    OBJECT,
    SCALARS,
    WHOLE,
    Shape,
    any_kind,
    flag,
    fold,
    is_list,
    is_map,
    is_object,
    left_to_spark,
    says_nothing,
    too_many,
)


def shape_of(schema: StructType, unknown: str) -> Shape:
    shape = _of_type(schema, unknown)
    shape.is_top = True
    return shape


def learn(shape: Shape, value: Mapping[str, object], *, columns: int) -> int:
    """Take in a body that fits and is news. `columns` is how many there are; returns how many there
    are now. Faulty, with nothing learned, if there would be too many."""
    made: list[tuple[Shape, str]] = []
    _grow(shape, value, made)
    if columns + len(made) > FIELDS_MAX:
        for parent, key in reversed(made):
            del parent.folded[fold(key)]
            del parent.fields[key]
        raise Faulty(too_many(len(made)))
    _teach(shape, value)
    return columns + len(made)


def count(shape: Shape) -> int:
    """How many columns there are, at all depths."""
    inner = count(shape.inner) if shape.inner else 0
    return len(shape.fields) + sum(count(each) for each in shape.fields.values()) + inner


def news(shape: Shape) -> dict[str, Any]:
    """What was learned, in a form for JSON; empty if nothing was."""
    found: dict[str, Any] = {"seen": shape.seen} if shape.kind is None and shape.seen else {}
    fields = {name: each for name, inner in shape.fields.items() if (each := news(inner))}
    if fields:
        found["fields"] = fields
    if shape.inner and (inner := news(shape.inner)):
        found["inner"] = inner
    return found


def absorb(shape: Shape, found: Mapping[str, Any], *, columns: int) -> int:
    """Add what another shape of the same schema has learned, as far as names and the limit allow;
    returns how many columns there are now."""
    if shape.kind is None:
        shape.seen |= found.get("seen", 0)
    for name, inner in found.get("fields", {}).items():
        there = shape.fields.get(name)
        if there is None:
            if fold(name) in shape.folded or columns >= FIELDS_MAX:
                continue
            there = _add(shape, name)
            columns += 1
        columns = absorb(there, inner, columns=columns)
    if "inner" in found:
        if shape.inner is None:
            shape.inner = Shape(any_kind)
        columns = absorb(shape.inner, found["inner"], columns=columns)
    return columns


def schema_of(shape: Shape, whole: DataType) -> StructType:
    found = ((name, _type_of(inner, whole)) for name, inner in shape.fields.items())
    return StructType([StructField(name, kind) for name, kind in found if kind is not None])


# -- from and to types ----------------------------------------------------------------------------


def _of_type(kind: DataType, unknown: str) -> Shape:
    if isinstance(kind, StructType):
        return Shape(
            is_object,
            kind,
            fields={one.name: _of_type(one.dataType, unknown) for one in kind.fields},
            folded={fold(one.name): one.name for one in kind.fields},
            unknown=unknown,
        )
    if isinstance(kind, MapType):
        return Shape(is_map, kind, inner=_of_type(kind.valueType, unknown))
    if isinstance(kind, ArrayType):
        return Shape(is_list, kind, inner=_of_type(kind.elementType, unknown))
    return Shape(SCALARS.get(type(kind), left_to_spark), kind)


def _type_of(shape: Shape, whole: DataType) -> DataType | None:
    kind, seen = shape.kind, shape.seen
    if isinstance(kind, StructType) or (kind is None and seen == OBJECT):
        found = schema_of(shape, whole)
        return found if found.fields or kind is not None else None
    if isinstance(kind, ArrayType) or (kind is None and seen == LIST):
        element = _type_of(shape.inner, whole) if shape.inner else None
        return ArrayType(element) if element is not None else None
    if isinstance(kind, MapType):
        assert shape.inner is not None
        return MapType(kind.keyType, _type_of(shape.inner, whole) or kind.valueType)
    if kind is not None or not seen:
        return kind
    return _scalar_of(seen, whole)


def _scalar_of(seen: int, whole: DataType) -> DataType:
    if seen == BOOLEAN:
        return BooleanType()
    if seen == WHOLE:
        return whole
    if not seen & ~(WHOLE | FRACTION):
        return DoubleType()
    if not seen & ~(WHOLE | LONG):
        return LongType()
    if not seen & ~(WHOLE | LONG | HUGE):
        return DecimalType(DECIMAL_DIGITS_MAX, 0)
    return StringType()


# -- learning -------------------------------------------------------------------------------------


def _grow(shape: Shape, value: object, made: list[tuple[Shape, str]]) -> None:
    """Make the places for keys that have none."""
    if isinstance(value, dict) and (shape.kind is None or isinstance(shape.kind, StructType)):
        for key, inner in value.items():
            there = shape.fields.get(key)
            if there is None and not says_nothing(inner):
                there = _add(shape, key)
                made.append((shape, key))
            if there is not None:
                _grow(there, inner, made)
    elif isinstance(value, dict | list) and (shape.kind is None or shape.inner is not None):
        if shape.inner is None:
            shape.inner = Shape(any_kind)
        for element in value.values() if isinstance(value, dict) else value:
            _grow(shape.inner, element, made)


def _add(shape: Shape, name: str) -> Shape:
    shape.folded[fold(name)] = name
    there = shape.fields[name] = Shape(any_kind)
    return there


def _teach(shape: Shape, value: object) -> None:
    if value is None:
        return
    if shape.kind is None:
        shape.seen |= flag(value)
    if isinstance(value, dict) and not isinstance(shape.kind, MapType):
        for key, inner in value.items():
            if key in shape.fields:
                _teach(shape.fields[key], inner)
    elif isinstance(value, dict | list) and shape.inner is not None:
        for element in value.values() if isinstance(value, dict) else value:
            _teach(shape.inner, element)
