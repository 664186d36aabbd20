"""Turns JSON bodies into events: a column by a schema that is given, or inferred and growing.

A schema only grows: new fields are added, and existing fields keep their types, since files with
two types for one column cannot be read as one table. `checked` judges every body on the workers, in
plain Python (`faults`, `shape`), before Spark's parser sees it; it also finds what is new in the
bodies (`grown`) and the keys of --dedupe. What Spark's parser then makes of a body that fits is the
same as what was sent. `others` has the bodies that do not fit; they go to the quarantine.
"""

import json
import operator
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.json_events import shape
from pyspark_nsq.pipelines.json_events.faults import Faulty, load
from pyspark_nsq.pipelines.json_events.fitting import CORRUPT, LEARN, LEAVE_OUT, fold
from pyspark_nsq.pipelines.json_events.keys import Path, key_of

FAULT = "_fault"  # a column: why a body is set aside; null for one that fits
KEY = "_key"  # a column: the key of --dedupe; null for a body without it
NEWS = "_news"  # a column: what some bodies have that the schema has not, as `shape.news` says it
SAMPLE_ROWS = 10_000  # read to infer a schema
WHOLE_IN_TABLE = DoubleType()  # a column of a table cannot change: 20 may be followed by 20.5
WHOLE_IN_QUERY = LongType()  # what a query publishes is 20, not 20.0
Takes = Callable[[DataType, DataType], bool]
_CHECKED = StructType([StructField(name, StringType()) for name in (FAULT, NEWS, KEY)])
_PARSER = {"columnNameOfCorruptRecord": CORRUPT, "allowNonNumericNumbers": "false"}
_UNPARSED = "Spark's parser does not take it"  # such as a date that is none


def text_of(body: str = "body") -> Column:
    return F.col(body).cast("string")


def schema_from_ddl(ddl: str) -> StructType:
    try:
        schema: object = StructType.fromDDL(ddl)
    except ParseException:
        schema = None
    if not isinstance(schema, StructType):
        wanted = "columns and types, like 'id BIGINT, city STRING'"
        raise BadOption(f"a schema is a list of {wanted}, not '{ddl}'")
    return schema


def checked(
    rows: DataFrame, schema: StructType, *, unknown: str, key: Path | None = None
) -> DataFrame:
    """The rows with FAULT, NEWS and KEY, in place of any that they have. `schema` is what is known
    of the events; `unknown` says what is done with keys that it does not have."""

    @F.arrow_udf(returnType=_CHECKED)  # type: ignore[attr-defined, untyped-decorator]  # no stub
    def check(bodies: pa.Array) -> pa.Array:
        found = look(bodies.to_pylist(), schema, unknown=unknown, key=key)
        return pa.StructArray.from_arrays(
            [pa.array(column, pa.string()) for column in found], [FAULT, NEWS, KEY]
        )

    bare = rows.drop(FAULT, NEWS, KEY)
    return bare.withColumn("_check", check("body")).select("*", "_check.*").drop("_check")


def look(
    bodies: Sequence[bytes], schema: StructType, *, unknown: str, key: Path | None = None
) -> tuple[list[str | None], list[str | None], list[str | None]]:
    """For each body its fault and its key. What is new in all of them is told with the last."""
    known = shape.shape_of(schema, unknown)
    columns = shape.count(known)
    faults: list[str | None] = []
    keys: list[str | None] = []
    learned = False
    for body in bodies:
        fault = found = None
        try:
            value = load(body)
            if known.judge(value, known) and unknown == LEARN:
                columns = shape.learn(known, value, columns=columns)
                learned = True
            found = None if key is None else key_of(value, key)
        except Faulty as error:
            fault = str(error)
        faults.append(fault)
        keys.append(found)
    news: list[str | None] = [None] * len(faults)
    if learned:
        news[-1] = json.dumps(shape.news(known))
    return faults, news, keys


def with_key(rows: DataFrame, key: Path) -> DataFrame:
    """The rows with KEY, whatever their bodies are."""

    @F.arrow_udf(returnType=StringType())  # type: ignore[attr-defined, untyped-decorator]  # no stub
    def found(bodies: pa.Array) -> pa.Array:
        return pa.array([_key_in(body, key) for body in bodies.to_pylist()], pa.string())

    return rows.withColumn(KEY, found("body"))


def _key_in(body: bytes, key: Path) -> str | None:
    try:
        return key_of(load(body), key)
    except Faulty:
        return None


def grown(rows: DataFrame, schema: StructType, *, whole: DataType) -> StructType:
    """The schema with what is new in the rows of `checked`, which were to LEARN it."""
    found = rows.where(F.col(NEWS).isNotNull()).select(NEWS).collect()
    if not found:
        return schema
    known = shape.shape_of(schema, LEARN)
    columns = shape.count(known)
    for row in found:
        columns = shape.absorb(known, json.loads(row[0]), columns=columns)
    return shape.schema_of(known, whole)


def merged(schema: StructType, more: StructType, takes: Takes = operator.eq) -> StructType:
    """The schema with the fields of another added; Spark ignores the case of names. A field that
    exists gets its other type if the table `takes` it in place of its own."""
    fields = {fold(field.name): field for field in schema.fields}
    for field in more.fields:
        there = fields.setdefault(fold(field.name), field)
        fields[fold(field.name)] = StructField(
            there.name, _merged_type(there.dataType, field.dataType, takes)
        )
    return StructType(list(fields.values()))


def _merged_type(kind: DataType, more: DataType, takes: Takes) -> DataType:
    if isinstance(kind, StructType) and isinstance(more, StructType):
        return merged(kind, more, takes)
    if isinstance(kind, ArrayType) and isinstance(more, ArrayType):
        return ArrayType(_merged_type(kind.elementType, more.elementType, takes))
    return more if takes(kind, more) else kind


def clash(
    there: DataType, news: DataType, takes: Takes = operator.eq, where: str = ""
) -> str | None:
    """Describe the first field that has two types, the second of which the table does not take;
    None if there is none."""
    if isinstance(there, StructType) and isinstance(news, StructType):
        known = {fold(field.name): field.dataType for field in there.fields}
        for field in news.fields:
            name = f"{where}.{field.name}".lstrip(".")
            kind = known.get(fold(field.name), field.dataType)
            if (found := clash(kind, field.dataType, takes, name)) is not None:
                return found
        return None
    if isinstance(there, ArrayType) and isinstance(news, ArrayType):
        return clash(there.elementType, news.elementType, takes, f"{where}[]")
    if takes(there, news):
        return None
    return f"{where} is {there.simpleString()} in the table, not {news.simpleString()}"


def with_event(messages: DataFrame, schema: StructType) -> DataFrame:
    """What a query may use: the columns of a topic, `text`, and `event` where there is a schema. A
    body that does not fit has no event."""
    rows = messages.withColumn("text", text_of())
    if not schema.fields:
        return rows
    both = parsed(checked(rows, schema, unknown=LEAVE_OUT), schema)
    event = F.when(F.col(FAULT).isNull(), F.col("event").dropFields(CORRUPT))
    return both.withColumn("event", event).drop(FAULT, KEY)


def sampled_schema(spark: SparkSession, options: dict[str, str]) -> StructType:
    """Infers the schema of the messages that a batch read with these options has now."""
    rows = spark.read.format("nsq").options(**options).load().limit(SAMPLE_ROWS)
    looked = checked(rows, StructType(), unknown=LEARN)
    return grown(looked, StructType(), whole=WHOLE_IN_QUERY)


def as_json(written: Column) -> Column:
    """JSON that Spark has written, with whole numbers of DOUBLE columns without a fraction."""

    @F.arrow_udf(returnType="binary")  # type: ignore[attr-defined, untyped-decorator]  # no stub
    def plain(texts: pa.Array) -> pa.Array:
        return pa.array([None if t is None else plain_json(t) for t in texts.to_pylist()])

    return plain(written)  # type: ignore[no-any-return]


def plain_json(text: str) -> bytes:
    value = json.loads(text, parse_float=_plain)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


def parsed(rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows of `checked` with a column `event`, for `events` and `others`. Persist it if both
    are used, as the parser would run twice."""
    whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    event = F.when(F.col(FAULT).isNull(), F.from_json(text_of(), whole, _PARSER))
    rows = rows.drop(NEWS).withColumn("event", event)
    unparsed = F.col("event").isNull() | F.col(f"event.{CORRUPT}").isNotNull()
    return rows.withColumn(FAULT, F.coalesce(FAULT, F.when(unparsed, F.lit(_UNPARSED))))


def events(both: DataFrame) -> DataFrame:
    """The rows that fit the schema, with their `event`."""
    found = both.where(F.col(FAULT).isNull()).drop(FAULT)
    kind = both.schema["event"].dataType
    if isinstance(kind, StructType) and len(kind.fields) > 1:
        return found.withColumn("event", F.col("event").dropFields(CORRUPT))
    return found.drop("event")  # Parquet has no struct without fields


def others(both: DataFrame) -> DataFrame:
    """The rows that do not fit the schema, with the `reason`."""
    rows = both.where(F.col(FAULT).isNotNull()).drop("event", KEY)
    return rows.withColumnRenamed(FAULT, "reason")
