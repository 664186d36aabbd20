"""Which bodies fit a schema, the reasons of those that do not, and how a schema is learned."""

import json
from collections.abc import Sequence

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_nsq.pipelines.json_events import shape
from pyspark_nsq.pipelines.json_events.events import clash, look, merged
from pyspark_nsq.pipelines.json_events.fitting import (
    FIELDS_MAX,
    LEARN,
    LEAVE_OUT,
    NAME_CHARS_MAX,
    REFUSE,
    fold,
)

UNKNOWN = [LEAVE_OUT, REFUSE, LEARN]


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


SCHEMA = struct(
    id=LongType(),
    small=ByteType(),
    price=DoubleType(),
    ratio=FloatType(),
    money=DecimalType(10, 2),
    huge=DecimalType(38, 0),
    paid=BooleanType(),
    day=DateType(),
    at=TimestampType(),
    raw=BinaryType(),
    note=StringType(),
    tags=ArrayType(StringType()),
    sizes=MapType(StringType(), struct(cm=LongType())),
    address=struct(lines=ArrayType(struct(number=LongType()))),
)


def fault(body: bytes, schema: StructType = SCHEMA, unknown: str = LEAVE_OUT) -> str | None:
    return look([body], schema, unknown=unknown)[0][0]


def taught(
    bodies: Sequence[bytes], schema: StructType | None = None, *, whole: DataType | None = None
) -> tuple[str, list[str | None]]:
    """The schema that bodies make, and their faults; taught by each half apart from the other, as
    by two workers, and by all at once."""
    schema = schema or StructType()
    kind = whole or DoubleType()
    faults, _, _ = look(bodies, schema, unknown=LEARN)
    found = []
    for parts in ([bodies], [bodies[: len(bodies) // 2], bodies[len(bodies) // 2 :]]):
        known = shape.shape_of(schema, LEARN)
        columns = shape.count(known)
        for part in parts:
            news = look(part, schema, unknown=LEARN)[1] if part else []
            if news and news[-1]:
                columns = shape.absorb(known, json.loads(news[-1]), columns=columns)
        assert columns == shape.count(known)
        found.append(shape.schema_of(known, kind))
    assert found[0] == found[1]
    return found[0].simpleString(), faults


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"id": "1"}', "id: a string where bigint is expected"),
        (b'{"id": true}', "id: a boolean where bigint is expected"),
        (b'{"id": 1.5}', "id: a number with a fraction where bigint is expected"),
        (b'{"id": 1.0}', "id: a number with a fraction where bigint is expected"),
        (b'{"small": 128}', "small: a number beyond tinyint"),
        (b'{"small": -129}', "small: a number beyond tinyint"),
        (b'{"id": %d}' % (1 << 63), "id: a number beyond bigint"),
        (b'{"price": "much"}', "price: a string where double is expected"),
        (b'{"price": "NaN"}', "price: a string where double is expected"),
        (b'{"price": false}', "price: a boolean where double is expected"),
        (b'{"price": 9007199254740993}', "price: a whole number that a DOUBLE does not keep"),
        (b'{"price": 1%s}' % (b"0" * 400), "price: a whole number that a DOUBLE does not keep"),
        (b'{"price": 1e400}', "price: a number beyond the largest DOUBLE"),
        (b'{"price": -1e400}', "price: a number beyond the largest DOUBLE"),
        (b'{"price": 1e-400}', "price: a number below the smallest DOUBLE"),
        (b'{"ratio": 1e39}', "ratio: a number beyond float"),
        (b'{"money": 1.005}', "money: a number with more digits than decimal(10,2)"),
        (b'{"money": 100000000}', "money: a number with more digits than decimal(10,2)"),
        (b'{"huge": 1.5}', "huge: a number with more digits than decimal(38,0)"),
        (b'{"huge": 1e38}', "huge: a number with more digits than decimal(38,0)"),
        (b'{"money": "1"}', "money: a string where decimal(10,2) is expected"),
        (b'{"paid": 1}', "paid: a whole number where boolean is expected"),
        (b'{"day": 20261116}', "day: a whole number where date is expected"),
        (b'{"at": %d}' % (1 << 60), "at: a number beyond timestamp"),
        (b'{"at": 1.5}', "at: a number with a fraction where timestamp is expected"),
        (b'{"raw": 1}', "raw: a whole number where binary is expected"),
        (b'{"note": 0.12345678901234567890}', "note: a number with more digits than a DOUBLE"),
        (b'{"note": {"a": [1, 1e400]}}', "note.a[1]: a number beyond the largest DOUBLE"),
        (b'{"tags": {}}', "tags: an object where array<string> is expected"),
        (b'{"address": []}', "address: a list where struct<lines:array<struct<number:bigint>>> is"),
        (b'{"sizes": {"a": {"cm": 1}, "b": {"cm": []}}}', "sizes.b.cm: a list where bigint is"),
        (
            b'{"address": {"lines": [{"number": 1}, {"number": "x"}]}}',
            "address.lines[1].number: a string where bigint is expected",
        ),
        (b'{"ID": 1}', "ID: the table has the column id, which differs only in case"),
        (b'{"id": 1, "Id": 2}', "Id: the table has the column id, which differs only in case"),
        (
            b'{"address": {"lines": [{"number": 1}, {"Number": 2}]}}',
            "address.lines[1].Number: the table has the column number, which differs only in case",
        ),
        (b'{"sizes": {"a": {"CM": 1}}}', "sizes.a.CM: the table has the column cm, which differs"),
    ],
)
def test_the_first_thing_that_does_not_fit_is_named(body: bytes, text: str, unknown: str) -> None:
    assert (fault(body, unknown=unknown) or "").startswith(text)


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"id": null, "tags": null, "address": null, "sizes": {"a": null}, "new": null}',
        b'{"id": 9223372036854775807, "small": -128, "price": 5, "paid": false, "ID": null}',
        b'{"price": 1e308, "ratio": 1e38, "money": 12345678.90, "huge": 1e37, "day": "2026-11-16"}',
        b'{"price": 18014398509481984, "money": 1.500, "at": 1731744000, "huge": 1.0}',
        b'{"note": 5, "tags": ["a", 5, null, 1.25], "sizes": {}, "address": {"lines": []}}',
        b'{"note": {"a": 1, "A": 2, "": [null]}, "sizes": {"a": {"cm": 1}, "A": {}, "": {}}}',
        b'{"new": {}, "more": [], "most": [[], {"x": null}, null]}',
    ],
)
def test_what_fits_has_no_fault(body: bytes, unknown: str) -> None:
    assert fault(body, unknown=unknown) is None


def test_unknown_keys_are_left_out_refused_or_learned() -> None:
    body = b'{"id": 1, "new": 1}'
    too_many = "new: a new field, and the table would have more than 2,000 columns"
    assert fault(body, unknown=LEAVE_OUT) is None
    assert fault(body, unknown=REFUSE) == too_many
    assert fault(body, unknown=LEARN) is None
    odd = b'{"other": {"b": 1, "B": 2}, "x": 1, "X": 1e400, "": 3, "_corrupt_record": 4}'
    assert fault(odd, unknown=LEAVE_OUT) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"name": 1, "Name": 2}', "Name: differs from name only in case"),
        (b'{"x": {"NAME": 1, "name": 2}}', "x.name: differs from NAME only in case"),
        (b'{"k": 1, "K": 2}', "K: differs from k only in case"),
        (b'{"": 1}', ": an empty key"),
        (b'{"x": [{"": 1}]}', "x[0].: an empty key"),
        (b'{"%s": 1}' % (b"k" * (NAME_CHARS_MAX + 1)), "kkk"),
        (b'{"_corrupt_record": 1}', "_corrupt_record: Spark's parser uses this key"),
        (b'{"_Corrupt_Record": {"a": 1}}', "_Corrupt_Record: Spark's parser uses this key"),
        (b'{"x": [{"y": -1e999}]}', "x[0].y: a number beyond the largest DOUBLE"),
        (b'{"x": 1%s}' % (b"0" * 38), "x: a whole number of more than 38 digits"),
    ],
)
def test_a_new_field_that_no_table_can_have_is_told(body: bytes, text: str) -> None:
    assert (fault(body, StructType(), LEARN) or "").lstrip().startswith(text.lstrip(": "))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["10", "20"], "double"),
        (["10", "30.5"], "double"),
        (["10", "9007199254740993"], "bigint"),
        (["1", "9223372036854775808"], "decimal(38,0)"),
        (["1.5", "9007199254740993"], "string"),
        (["true", "false"], "boolean"),
        (["true", "1"], "string"),
        (['"a"', "1"], "string"),
        (['{"x": 1}', '"a"'], "string"),
        (['{"x": 1}', "[1]"], "string"),
        (["[1]", '["a"]'], "array<string>"),
        (["[[1]]", "[[], [2.5]]"], "array<array<double>>"),
        (['{"x": 1}', '{"y": ["a"]}'], "struct<x:double,y:array<string>>"),
        (['[{"x": 1}]', '[{"x": 2, "y": true}, null]'], "array<struct<x:double,y:boolean>>"),
        (["null", "true"], "boolean"),
        (["{}", "[]"], None),
        (["[null, {}]", "null"], None),
    ],
)
def test_the_type_is_one_that_keeps_all_values(values: list[str], kind: str | None) -> None:
    bodies = [b'{"a": %s}' % value.encode() for value in values]
    expected = "struct<>" if kind is None else f"struct<a:{kind}>"
    assert taught(bodies) == (expected, [None, None])
    reverse, faults = taught(bodies[::-1])
    assert sorted(reverse) == sorted(expected)  # its fields come in another order
    assert faults == [None, None]


def test_whole_numbers_of_a_query_stay_whole() -> None:
    bodies = [b'{"a": 1, "b": 1}', b'{"a": 2, "b": 1.5}']
    assert taught(bodies, whole=LongType())[0] == "struct<a:bigint,b:double>"


def test_a_schema_takes_new_fields_and_keeps_the_types_it_has() -> None:
    before = struct(
        id=LongType(),
        inner=struct(a=LongType()),
        many=ArrayType(struct(b=LongType())),
        sizes=MapType(StringType(), struct(cm=LongType())),
    )
    bodies = [
        b'{"inner": {"a": 1, "c": "x"}, "many": [{"d": true}], "fresh": {"x": [1]}}',
        b'{"id": 7, "sizes": {"s": {"inch": "x"}}}',
        b'{"id": "set aside", "decides": "nothing"}',
        b'{"many": [{"b": 1}, {"b": "x", "nor": "this"}]}',
    ]
    text, faults = taught(bodies, before)
    assert text == (
        "struct<id:bigint,inner:struct<a:bigint,c:string>,many:array<struct<b:bigint,d:boolean>>,"
        "sizes:map<string,struct<cm:bigint,inch:string>>,fresh:struct<x:array<double>>>"
    )
    assert [bool(fault) for fault in faults] == [False, False, True, True]


def test_of_two_spellings_the_first_becomes_the_column() -> None:
    bodies = [b'{"city": 1}', b'{"City": 1, "decides": "nothing"}', b'{"CITY": {"a": 1}}']
    faults, news, _ = look(bodies, StructType(), unknown=LEARN)
    assert faults == [
        None,
        "City: the table has the column city, which differs only in case",
        "CITY: the table has the column city, which differs only in case",
    ]
    assert set(json.loads(news[-1] or "")["fields"]) == {"city"}


def test_a_schema_stops_growing_before_keys_that_are_data_become_its_columns() -> None:
    def user(first: int, count: int) -> bytes:
        keys = {f"user_{number}": number for number in range(first, first + count)}
        return json.dumps({"users": keys}).encode()

    half = FIELDS_MAX // 2
    bodies = [user(0, half), user(half, half), user(0, half), user(2 * half, half - 1)]
    faults, news, _ = look(bodies, StructType(), unknown=LEARN)
    too_many = " new fields, and the table would have more than 2,000 columns"
    assert faults == [None, f"{half:,}{too_many}", None, None]
    known = shape.shape_of(StructType(), LEARN)
    columns = shape.absorb(known, json.loads(news[-1] or ""), columns=0)
    assert columns == shape.count(known) == 2 * half
    more = look([user(half, 1)], shape.schema_of(known, DoubleType()), unknown=LEARN)
    assert more[0] == ["a new field, and the table would have more than 2,000 columns"]


def test_names_that_spark_takes_for_one_are_one() -> None:
    assert fold("K") == fold("K") == fold("k")  # the Kelvin sign
    assert fold("ſ") == fold("S") == fold("s")
    assert fold("İ") == fold("i")
    assert fold("ß") != fold("SS")
    assert fold("Σς") == fold("σσ")


def test_a_given_schema_is_added_to_the_columns_that_are_there() -> None:
    before = struct(id=LongType(), inner=struct(a=LongType()), many=ArrayType(struct(b=LongType())))
    more = struct(
        ID=StringType(), inner=struct(c=StringType()), many=ArrayType(struct(d=LongType()))
    )
    assert merged(before, more) == struct(
        id=LongType(),
        inner=struct(a=LongType(), c=StringType()),
        many=ArrayType(struct(b=LongType(), d=LongType())),
    )
    assert clash(before, more) == "ID is bigint in the table, not string"
