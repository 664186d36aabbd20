"""Finds what no table can keep in a body, before Spark's parser sees it.

Spark's parser reads `{"id":4} garbage` as `{"id":4}`, takes NaN for a number, keeps one of two
fields with one name, and ends the Java process on deep nesting. So every body is checked here
first, in plain Python, on the workers:

| a body is set aside if | because |
|---|---|
| it is not one JSON object in UTF-8, and nothing else | the rest would be dropped |
| it has NaN, Infinity, or a number too large for DOUBLE | it would be changed |
| an object has a key twice, an empty key, or keys that differ only in case | Spark has one column |
| a key differs from a column only in case | the same |
| it is larger, deeper or has more keys than the limits | it could stop the pipeline |
| it has the key `_corrupt_record` | Spark's parser uses it for its own ends |

What becomes no column is not looked at: fields that a given schema leaves out, keys of a MAP, and
objects in a STRING column, which keeps their text. Knows bytes and types; must not know Spark
sessions or files.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

BODY_BYTES_MAX = 16 << 20  # Spark's parser takes no string of more than 20 million characters
DEPTH_MAX = 64  # objects and lists in each other
KEYS_MAX = 2000  # of one message, at all depths
CORRUPT = "_corrupt_record"  # where Spark's parser puts a text that it cannot parse
NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

Checker = Callable[[bytes], str | None]


class Faulty(ValueError):
    """A body that is set aside; the text is the reason."""


@dataclass(slots=True)
class Shape:
    """What is known of the type at one place of a body, made from a schema once."""

    fields: dict[str, "Shape"] = field(default_factory=dict)
    spelling: dict[str, str] = field(default_factory=dict)  # by the name in lower case
    values: "Shape | None" = None  # of a map
    elements: "Shape | None" = None  # of a list
    is_map: bool = False
    is_text: bool = False  # the parser keeps the text of whatever is there
    is_closed: bool = False  # fields that are not known become no columns


def load(body: bytes) -> dict[str, object]:
    """The object in a body; Faulty if there is no single, sound one within the limits."""
    if len(body) > BODY_BYTES_MAX:
        raise Faulty(f"{len(body):,} bytes: more than the {BODY_BYTES_MAX:,} that are parsed")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Faulty(f"not UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from None
    try:
        value = _DECODER.decode(text)
    except Faulty:
        raise
    except ValueError as error:
        raise Faulty(f"not JSON: {error}") from None
    except RecursionError:
        raise Faulty(_too_deep()) from None
    if not isinstance(value, dict):
        raise Faulty(f"not an object, but {NAMES[type(value)]}")
    # Counting bytes is cheap, and enough for nearly all bodies.
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise Faulty(_too_deep())
    if body.count(b":") > KEYS_MAX and (count := _keys(value)) > KEYS_MAX:
        raise Faulty(f"{count:,} keys: more than the {KEYS_MAX:,} that are parsed")
    return value


def checker(schema: StructType, *, grows: bool) -> Checker:
    """A function that names the first fault of a body, or returns None. `grows` says whether keys
    that the schema does not have become columns."""
    known = _shape(schema, grows=grows)

    def fault(body: bytes) -> str | None:
        try:
            value = load(body)
            _check_object(value, known, "")
        except Faulty as error:
            return str(error)
        return None

    return fault


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Faulty(f"the key {twice} is there twice")
    return found


def _constant(name: str) -> NoReturn:
    raise Faulty(f"not JSON: {name} is not a number")


# json.loads would make a decoder for each body, which takes as long as to parse a small one.
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _too_deep() -> str:
    return f"too deep: more than {DEPTH_MAX} objects and lists in each other"


def _shape(kind: DataType | None, *, grows: bool) -> Shape:
    if kind is None:
        return Shape()
    if isinstance(kind, StructType):
        return Shape(
            fields={f.name: _shape(f.dataType, grows=grows) for f in kind.fields},
            spelling={f.name.lower(): f.name for f in kind.fields},
            is_closed=not grows,
        )
    if isinstance(kind, MapType):
        return Shape(values=_shape(kind.valueType, grows=grows), is_map=True)
    if isinstance(kind, ArrayType):
        return Shape(elements=_shape(kind.elementType, grows=grows))
    return Shape(is_text=not isinstance(kind, DoubleType | FloatType))


_UNKNOWN = Shape()
_CHECKED = frozenset({dict, list, float})  # other values are kept whatever they are


def _check(value: object, known: Shape, where: str) -> None:
    kind = type(value)
    if known.is_text or kind is str:
        return
    if kind is float and value - value != 0:  # type: ignore[operator]  # of infinity it is NaN
        raise Faulty(f"{where}: a number beyond the largest DOUBLE")
    if kind is dict:
        _check_object(value, known, where)  # type: ignore[arg-type]
    elif kind is list:
        elements = known.elements or _UNKNOWN
        for number, element in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _check(element, elements, f"{where}[{number}]")


def _check_object(value: dict[str, object], known: Shape, where: str) -> None:
    if known.is_map:
        for key, inner in value.items():
            _check(inner, known.values or _UNKNOWN, f"{where}.{key}")
        return
    fields = known.fields
    strange: dict[str, str] = {}  # keys without a column, by their lower case
    for key, inner in value.items():
        shape = fields.get(key)
        if shape is None:
            _check_name(key, known, strange, where)
            if known.is_closed:
                continue
            shape = _UNKNOWN
        if type(inner) in _CHECKED:
            _check(inner, shape, f"{where}.{key}" if where else key)


def _check_name(key: str, known: Shape, strange: dict[str, str], where: str) -> None:
    name = f"{where}.{key}" if where else key
    lower = key.lower()
    there = known.spelling.get(lower)
    if there is not None:
        raise Faulty(f"{name}: the table has the column {there}, which differs only in case")
    if known.is_closed:
        return
    if not key:
        raise Faulty(f"an empty key{f' in {where}' if where else ''}")
    if lower == CORRUPT and not where:
        raise Faulty(f"the key {key}: Spark's parser uses it for its own ends")
    twin = strange.setdefault(lower, key)
    if twin != key:
        raise Faulty(f"{name}: differs from {twin} only in case")


def _depth(value: object) -> int:
    """Not recursive: the decoder may go deeper than a function of Python's."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in _inner(one)]
    return depth


def _keys(value: object) -> int:
    count, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        count += sum(len(one) for one in level if isinstance(one, dict))
        level = [inner for one in level for inner in _inner(one)]
    return count


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
