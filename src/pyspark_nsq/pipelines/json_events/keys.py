"""The key of a message, by which --dedupe knows a repeat: the value at a JSON path of its body.

Two keys are the same if they are the same JSON value: 1, 1.0 and 1e0 are one number; 1 and "1" are
two keys, and so are true and "true". The order of an object's fields does not matter. null is no
key. Knows JSON; must not know Spark.
"""

import json
import re
from decimal import Decimal

from pyspark_nsq.errors import BadOption

Path = tuple[str | int, ...]

_STEP = re.compile(r"""\.([^.\[\]'"*]+) | \['([^']+)'\] | \["([^"]+)"\] | \[(\d{1,9})\]""", re.X)


def path_of(text: str) -> Path:
    """The steps of a JSON path: `order_id`, `$.meta.id`, `$['odd name'].ids[0]`."""
    rest = text[1:] if text.startswith("$") else f".{text}"
    steps: list[str | int] = []
    while rest:
        found = _STEP.match(rest)
        if found is None:
            break
        name = found[1] or found[2] or found[3]
        steps.append(int(found[4]) if name is None else name)
        rest = rest[found.end() :]
    if rest or not steps:
        raise BadOption(f"--dedupe wants a path like order_id, $.meta.id or $.ids[0], not '{text}'")
    return tuple(steps)


def key_of(value: object, path: Path) -> str | None:
    """The key in a body that was loaded, as a text; None if it has none."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return None if value is None else _text(value)


def _text(value: object) -> str:
    """Equal texts for equal JSON values, and for no others."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(k)}:{_text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(inner) for inner in value) + "]"
    if isinstance(value, Decimal) or type(value) is int:
        return _number(value)
    return json.dumps(value)


def _number(value: Decimal | int) -> str:
    """Digits and exponent, not rounded: 120 and 1.2e2 are both 12e1."""
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)  # JSON has no infinity
    text = "".join(map(str, digits)).lstrip("0")
    plain = text.rstrip("0")
    if not plain:
        return "0"
    exponent += len(text) - len(plain)
    return f"{'-' if sign else ''}{plain}{f'e{exponent}' if exponent else ''}"
