"""Reads one JSON object out of a body, or says why there is none that a table could keep.

Spark's parser reads `{"id":4} garbage` as `{"id":4}`, takes NaN for a number, keeps one of two
fields with one name, makes `?` of half a character, and ends the Java process on deep nesting. So
every body is read here first, in plain Python, on the workers:

| a body is set aside if | because |
|---|---|
| it is not one JSON object in UTF-8, and nothing else | the rest would be dropped |
| it has NaN or Infinity | they are not JSON, and would be changed |
| an object has a key twice | one of the two would be dropped |
| a text has half a surrogate pair, as in "\\ud800" | no UTF-8 text can have it |
| it is larger, deeper or has more keys than the limits | it could stop the pipeline |

`shape` then compares it with the columns. Knows bytes; must not know types or Spark.
"""

import json
import re
from decimal import Decimal
from typing import NoReturn

BODY_BYTES_MAX = 16 << 20  # Spark's parser takes no string of more than 20 million characters
DEPTH_MAX = 64  # objects and lists in each other
KEYS_MAX = 2000  # of one message, at all depths
NAME_CHARS_SHOWN = 100  # in a reason
NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    Decimal: "a number with a fraction",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Faulty(ValueError):
    """A body that is set aside. `path` leads to the place, from the inside to the outside."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path: list[str | int] = []

    def __str__(self) -> str:
        where = ""
        for step in reversed(self.path):
            if isinstance(step, int):
                where += f"[{step}]"
            else:
                where += f".{step[:NAME_CHARS_SHOWN]}" if where else step[:NAME_CHARS_SHOWN]
        return f"{where}: {self.args[0]}" if where else str(self.args[0])


def load(body: bytes) -> dict[str, object]:
    """The object in a body, with a Decimal for each number that has a fraction or an exponent;
    Faulty if there is no single, sound object within the limits."""
    if len(body) > BODY_BYTES_MAX:
        raise Faulty(f"{len(body):,} bytes: more than the {BODY_BYTES_MAX:,} that are parsed")
    try:
        value = _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise Faulty(f"not UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from None
    except Faulty:
        raise
    except ValueError as error:
        raise Faulty(f"not JSON: {error}") from None
    except ArithmeticError:  # of Decimal, whose exponents have 18 digits at most
        raise Faulty("a number beyond all types") from None
    except RecursionError:
        raise Faulty(_too_deep()) from None
    if not isinstance(value, dict):
        raise Faulty(f"not an object, but {NAMES[type(value)]}")
    # Counting bytes is cheap, and enough for nearly all bodies.
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise Faulty(_too_deep())
    if body.count(b":") > KEYS_MAX and (count := _keys(value)) > KEYS_MAX:
        raise Faulty(f"{count:,} keys: more than the {KEYS_MAX:,} that are parsed")
    if _SURROGATE.search(body) and not _is_encodable(value):
        raise Faulty("half a surrogate pair, which no text can have")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Faulty(f"the key {twice[:NAME_CHARS_SHOWN]} is there twice")
    return found


def _constant(name: str) -> NoReturn:
    raise Faulty(f"not JSON: {name} is not a number")


# json.loads would make a decoder for each body, which takes as long as to parse a small one.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=Decimal
)


def _too_deep() -> str:
    return f"too deep: more than {DEPTH_MAX} objects and lists in each other"


def _is_encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


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
