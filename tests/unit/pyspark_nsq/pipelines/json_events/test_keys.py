"""Which keys --dedupe takes for the same, and how a path to them is written."""

import itertools

import pytest

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.json_events.faults import load
from pyspark_nsq.pipelines.json_events.keys import Path, key_of, path_of

# The values of one row are one key; those of two rows are two.
KEYS = [
    ["1", "1.0", "1e0", "10e-1", "0.1E1"],
    ['"1"', r'"\u0031"'],
    ["1.5", "15e-1", "1.50"],
    ["-1", "-1.000"],
    ["0", "-0", "0.0", "0e5"],
    ["9007199254740993", "9007199254740993.0"],
    ["9007199254740992"],
    ["1e400", "10e399"],
    ["1e401"],
    ["0.1000000000000000055511151231257827"],
    ["0.1", "0.10"],
    ["true"],
    ['"true"'],
    ["false"],
    ['""'],
    ["[]"],
    ["{}"],
    ["[1, 2.0]", "[1.0, 2]"],
    ["[2, 1]"],
    ['{"a": 1, "b": "x"}', '{"b": "x", "a": 1.0}'],
    ['{"a": "1", "b": "x"}'],
]


def key(value: str, path: Path = ("k",)) -> str | None:
    return key_of(load(b'{"k": %s}' % value.encode()), path)


def test_equal_values_are_one_key_however_they_are_written_and_others_are_not() -> None:
    for row in KEYS:
        assert len({key(value) for value in row}) == 1, row
    for one, other in itertools.combinations(KEYS, 2):
        assert key(one[0]) != key(other[0])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("order_id", ("order_id",)),
        ("meta.id", ("meta", "id")),
        ("$.meta.id", ("meta", "id")),
        ("$['odd name']", ("odd name",)),
        ('$["a.b"].ids[0]', ("a.b", "ids", 0)),
        ("ids[12].x", ("ids", 12, "x")),
        ("größe", ("größe",)),
    ],
)
def test_a_path_is_written_as_in_sql(text: str, path: Path) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize("text", ["$", "", "a..b", "a[*]", "$.*", "a[-1]", "a[", "$.a b'c", "['']"])
def test_a_path_that_is_none_is_told(text: str) -> None:
    with pytest.raises(BadOption, match="--dedupe wants a path"):
        path_of(text)


@pytest.mark.parametrize(
    "path", [("x",), ("k", "x"), ("k", 0), ("list", 2), ("list", "x"), ("nothing",)]
)
def test_a_message_without_the_key_has_none(path: Path) -> None:
    body = {"k": "text", "list": [1, 2], "nothing": None}
    assert key_of(body, path) is None
