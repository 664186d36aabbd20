"""JSON bodies from a seed, ordinary ones and all that is odd; and a ledger, in plain Python, that
says what must come out of an archive.

Types change, names collide, objects are deep and wide, numbers are beyond every type, bytes are
broken. The ledger knows nothing of how a body is judged: a row of the table must say what was sent,
every message is in the table or in the quarantine, and what is no JSON object is in the quarantine.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

NAMES = [
    *("id", "name", "Name", "NAME", "total", "city", "k", "K", "\u212a", "s", "\u017f", "İ", "i"),
    *("a b", "a.b", "a`b", "a,;{}()=", "", "_corrupt_record", "ä", "event", "body", "x" * 1200),
]
NUMBERS = [
    *("0", "-0", "1", "-1", "10", "20", "30.5", "0.1", "-0.0", "1e5", "1E-3", "1.10", "100.0"),
    *("2147483648", "9007199254740992", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "1" + "0" * 37, "1" + "0" * 38, "9" * 400),
    *("1e308", "1e309", "-1e400", "1e-320", "1e-400", "5e-324", "0.12345678901234567890123"),
    *("123456789012345678901234567890.5", "1e99999999999999999999", "1.5e3", "12e-1"),
]
STRINGS = [
    *('""', '"Oslo"', '"NaN"', '"10"', '"10.5"', '"true"', '"null"', '"2026-11-16"', '"\\u0000"'),
    *('"\\ud83d\\ude00"', '"\\ud800"', '"a\\ud83dz"', '"é ß 漢"', '"\\\\ud800"', '"\\""', '" x "'),
]
BROKEN = [
    *(b"", b" ", b"{", b"[1]", b"null", b"1", b'"x"', b'{"id": NaN}', b'{"id": [-Infinity]}'),
    *(b'{"id": 1} x', b'{"id": 1}{"id": 2}', b'{"id": 1,}', b"{'id': 1}", b'{"id": 01}'),
    *(b'{"id": 1, "id": 2}', b'{"x": [{"y": 1, "y": 1}]}', b"\xff\xfe", b'{"id": "\xff"}'),
    *(b"\xef\xbb\xbf{}", '{"id": 1}'.encode("utf-16"), b"[" * 3000, b'{"a":' * 3000),
    *(b'{"a": "\x00"}', b'{"a": .5}', b'{"a": +1}', b'{"a": 1}\x00', b"{}\n{}"),
]


class Bodies:
    """An endless row of bodies; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def take(self, count: int) -> list[bytes]:
        return [self._body() for _ in range(count)]

    def _body(self) -> bytes:
        kind = self._random.random()
        if kind < 0.5:
            return self._order()
        if kind < 0.85:
            return self._object(self._random.randrange(4)).encode()
        if kind < 0.88:
            return self._deep(self._random.choice([5, 63, 64, 65, 200]))
        if kind < 0.90:
            width = self._random.choice([20, 200, 2001])
            return json.dumps(
                {f"w{self._random.randrange(250) if width < 2000 else n}": n for n in range(width)}
            ).encode()
        if kind < 0.93:
            body = bytearray(self._order())
            body[self._random.randrange(len(body))] = self._random.randrange(256)
            return bytes(body)
        if kind < 0.95:
            order = self._order()
            return order[: self._random.randrange(len(order))]
        return self._random.choice(BROKEN)

    def _order(self) -> bytes:
        """What a shop sends, with a key that comes again and a total that is whole at times."""
        pick = self._random.choice
        number = self._random.randrange(60)
        key = pick([str(number)] * 6 + [f"{number}.0", f'"{number}"', "null"])
        total = pick(["10", "20", "30.5", "0.1", "1e2"])
        lines = ",".join(
            f'{{"item":"pen","quantity":{n}}}' for n in range(self._random.randrange(3))
        )
        city = pick(['"Oslo"', '"Rome"', "null"])
        return f'{{"id":{key},"total":{total},"city":{city},"lines":[{lines}]}}'.encode()

    def _object(self, depth: int) -> str:
        names = self._random.sample(NAMES, self._random.randrange(1, 5))
        fields = (f"{json.dumps(name)}: {self._value(depth)}" for name in names)
        return "{" + ", ".join(fields) + "}"

    def _value(self, depth: int) -> str:
        kind = self._random.randrange(10)
        if kind < 3:
            return self._random.choice(NUMBERS)
        if kind < 6:
            return self._random.choice(STRINGS)
        if kind < 8 or not depth:
            return self._random.choice(["true", "false", "null", "{}", "[]", "[null]"])
        if kind == 8:
            return self._object(depth - 1)
        return (
            "[" + ", ".join(self._value(depth - 1) for _ in range(self._random.randrange(4))) + "]"
        )

    def _deep(self, depth: int) -> bytes:
        text = self._random.choice(["1", '"x"', "{}"])
        for level in range(depth):
            text = (
                f'{{"d":{text}}}'
                if self._random.random() < 0.5 or level == depth - 1
                else f"[{text}]"
            )
        return text.encode()


@dataclass(slots=True)
class Ledger:
    """What was published, by offset; in the order of publishing."""

    sent: list[bytes] = field(default_factory=list)

    def check(
        self,
        table: Iterable[tuple[int, bytes | None, Any]],
        quarantine: Iterable[tuple[int, bytes, str]],
    ) -> set[int]:
        """Assert that each message is once in the table, as it was sent, or in the quarantine, with
        a reason; `table` has offset, body and event. Returns the offsets in the table."""
        rows, bad = list(table), list(quarantine)
        offsets = [offset for offset, *_ in (*rows, *bad)]
        twice = {offset for offset, count in Counter(offsets).items() if count > 1}
        assert not twice, [
            (n, self.sent[n], *(why for at, _, why in bad if at == n)) for n in twice
        ]
        assert set(offsets) == set(range(len(self.sent))), "a message is missing"
        for offset, body, reason in bad:
            assert body == self.sent[offset] and reason
        for offset, body, event in rows:
            assert body in (None, self.sent[offset])
            value = loaded(self.sent[offset])
            assert isinstance(value, dict) and same(value, event), (self.sent[offset][:500], event)
        return {offset for offset, *_ in rows}

    def firsts(self, kept: set[int], key: str) -> set[int]:
        """Of these offsets those that are the first with their key, or have none."""
        found: set[int] = set()
        seen: set[object] = set()
        for offset in sorted(kept):
            value = loaded(self.sent[offset]).get(key)
            mark = _mark(value)
            if value is None or mark not in seen:
                found.add(offset)
            seen.add(mark)
        return found


def loaded(body: bytes) -> Any:
    """One JSON value and nothing else; ValueError if it is none."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError("a key is there twice")
        return dict(found)

    def constant(name: str) -> Any:
        raise ValueError(name)

    return json.loads(body.decode(), object_pairs_hook=pairs, parse_constant=constant)


def same(sent: Any, kept: Any) -> bool:
    """Whether a value of a table says what was sent. A column of strings has the JSON text of what
    is no string; null, {} and [] may be NULL."""
    if kept is None:
        return _is_nothing(sent)
    if isinstance(kept, dict):
        if not isinstance(sent, dict):
            return False
        there = all(same(sent.get(name), value) for name, value in kept.items())
        return there and all(name in kept or _is_nothing(value) for name, value in sent.items())
    if isinstance(kept, list):
        is_list = isinstance(sent, list) and len(sent) == len(kept)
        return is_list and all(same(one, other) for one, other in zip(sent, kept, strict=True))
    if isinstance(kept, str):
        return bool(sent == kept) if isinstance(sent, str) else json.loads(kept) == sent
    if isinstance(kept, bool) or isinstance(sent, bool):
        return kept is sent
    return isinstance(sent, int | float) and bool(sent == kept)


def _is_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_nothing(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_is_nothing(inner) for inner in value)
    return value is None


def _mark(value: Any) -> object:
    """Equal for values that are one key."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", Fraction(value))
    if isinstance(value, dict):
        return ("object", tuple((name, _mark(inner)) for name, inner in sorted(value.items())))
    if isinstance(value, list):
        return ("list", tuple(_mark(inner) for inner in value))
    return (type(value).__name__, value)
