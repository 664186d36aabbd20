"""The columns of a topic, in Spark's terms, and which of them a read was asked for.

Spark does not prune the columns of Python sources: a user who wants fewer says so by schema, as in
`.schema("offset BIGINT, body BINARY")`, and what is left out is never decoded.
"""

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_nsq.errors import BadColumns
from pyspark_nsq.reading.decode import COLUMN_TYPES

SPARK_TYPES: dict[str, DataType] = {
    "topic": StringType(),
    "node": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "id": StringType(),
    "attempts": IntegerType(),
    "body": BinaryType(),
}
SCHEMA = StructType([StructField(name, kind, False) for name, kind in SPARK_TYPES.items()])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow form of the columns asked for; Spark wants it equal down to what may be null."""
    fields = []
    for wanted in schema.fields:
        kind = SPARK_TYPES.get(wanted.name)
        if kind is None:
            known = ", ".join(SPARK_TYPES)
            raise BadColumns(f"a topic has no column '{wanted.name}'; it has {known}")
        if wanted.dataType != kind:
            given = wanted.dataType.simpleString()
            raise BadColumns(f"column '{wanted.name}' is {kind.simpleString()}, not {given}")
        fields.append(pa.field(wanted.name, COLUMN_TYPES[wanted.name], wanted.nullable))
    if not fields:
        raise BadColumns("the schema has no columns")
    return pa.schema(fields)
