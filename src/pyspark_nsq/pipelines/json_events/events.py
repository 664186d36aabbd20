"""Turns JSON bodies into events: a column by a schema that is given, or inferred and growing.

A schema only grows: new fields are added, and existing fields keep their types, since files with
two types for one column cannot be read as one table. `checked` looks at all bodies before Spark's
parser does (`faults`). `others` finds the rows that do not fit; they go to the quarantine.
"""

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.json_events.faults import CORRUPT, checker
from pyspark_nsq.pipelines.json_events.mismatch import reason

FIELDS_MAX = 2000  # stops keys that are data, as in {"user-17": ...}, from becoming columns
FAULT = "_fault"  # a column: why a body is set aside before it is parsed; null for all others
SAMPLE_ROWS = 10_000  # read to infer a schema


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


def checked(rows: DataFrame, schema: StructType, *, grows: bool) -> DataFrame:
    """The rows with FAULT, for `inferred` and `parsed`. `schema` is what is known of the events;
    `grows` says whether keys that it does not have become columns."""

    @F.arrow_udf(returnType=StringType())  # type: ignore[attr-defined, untyped-decorator]  # no stub
    def fault(bodies: pa.Array) -> pa.Array:
        check = checker(schema, grows=grows)
        return pa.array([check(body) for body in bodies.to_pylist()], pa.string())

    return rows.withColumn(FAULT, fault("body"))


def inferred(spark: SparkSession, rows: DataFrame) -> StructType:
    """The schema with the fields of all bodies without a fault; `checked` finds the others."""
    reader = spark.read.option("dropFieldIfAllNull", "true")
    return reader.json(rows.where(F.col(FAULT).isNull()).select(text_of())).schema


def merged(schema: StructType, news: StructType) -> StructType:
    """The schema with the new fields added; Spark ignores the case of names."""
    return StructType(_merged_fields(schema, news)[:FIELDS_MAX])


def _merged_fields(schema: StructType, news: StructType) -> list[StructField]:
    fields = {field.name.lower(): field for field in schema.fields}
    for field in news.fields:
        key = field.name.lower()
        there = fields.get(key)
        if there is None and field.name:
            fields[key] = StructField(field.name, _without_twins(field.dataType))
        elif there is not None and there.name == field.name:
            kind = _merged_type(there.dataType, field.dataType)
            fields[key] = StructField(there.name, kind)
    return list(fields.values())


def _merged_type(kind: DataType, news: DataType) -> DataType:
    if isinstance(kind, StructType) and isinstance(news, StructType):
        return merged(kind, news)
    if isinstance(kind, ArrayType) and isinstance(news, ArrayType):
        return ArrayType(_merged_type(kind.elementType, news.elementType))
    return kind


def clash(there: DataType, news: DataType, where: str = "") -> str | None:
    """Describe the first field that has two types; None if there is none."""
    if isinstance(there, StructType) and isinstance(news, StructType):
        known = {field.name.lower(): field.dataType for field in there.fields}
        for field in news.fields:
            name = f"{where}.{field.name}".lstrip(".")
            kind = known.get(field.name.lower(), field.dataType)
            if (found := clash(kind, field.dataType, name)) is not None:
                return found
        return None
    if isinstance(there, ArrayType) and isinstance(news, ArrayType):
        return clash(there.elementType, news.elementType, f"{where}[]")
    if there == news:
        return None
    return f"{where} is {there.simpleString()} in the table, not {news.simpleString()}"


def _without_twins(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return merged(StructType(), kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_without_twins(kind.elementType))
    return kind


def with_event(messages: DataFrame, schema: StructType) -> DataFrame:
    """What a query may use: the columns of a topic, `text`, and `event` where there is a schema."""
    rows = messages.withColumn("text", text_of())
    if not schema.fields:
        return rows
    return rows.withColumn("event", F.from_json(F.col("text"), schema))


def sampled_schema(spark: SparkSession, options: dict[str, str]) -> StructType:
    """Infers the schema of the messages that the topics have now."""
    names = {"maxoffsetspertrigger", "startingoffsets", "startingtimestamp", "hold", "holdbytesmax"}
    kept = {name: value for name, value in options.items() if name.lower() not in names}
    rows = spark.read.format("nsq").options(**kept).load().limit(SAMPLE_ROWS)
    return merged(StructType(), inferred(spark, checked(rows, StructType(), grows=True)))


def parsed(rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows of `checked` with a column `event`, for `events` and `others`. Persist it if both
    are used, as the parser would run twice."""
    whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    event = F.from_json(text_of(), whole, {"columnNameOfCorruptRecord": CORRUPT})
    return rows.withColumn("event", F.when(F.col(FAULT).isNull(), event))


def events(both: DataFrame) -> DataFrame:
    """The rows that fit the schema, with their `event`."""
    found = both.where(_fits()).drop(FAULT)
    kind = both.schema["event"].dataType
    if isinstance(kind, StructType) and len(kind.fields) > 1:
        return found.withColumn("event", F.col("event").dropFields(CORRUPT))
    return found.drop("event")  # Parquet has no struct without fields


def others(both: DataFrame, schema: StructType) -> DataFrame:
    """The rows that do not fit the schema, with the `reason`."""

    @F.udf(returnType=StringType())
    def why(body):  # type: ignore[no-untyped-def]  # with hints Spark makes another kind of udf
        return reason(bytes(body), schema)

    rows = both.where(~_fits()).drop("event")
    return rows.withColumn("reason", F.coalesce(FAULT, why("body"))).drop(FAULT)


def _fits() -> Column:
    return F.col("event").isNotNull() & F.col(f"event.{CORRUPT}").isNull()
