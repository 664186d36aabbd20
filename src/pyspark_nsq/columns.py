"""The columns of a topic as Spark types, and the Arrow schema of the columns that a read wants.

Spark does not prune the columns of Python sources. A user who needs fewer columns gives a schema,
as in `.schema("offset BIGINT, body BINARY")`; other columns are never decoded.
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
    """The Arrow schema for these columns. It must equal Spark's, including nullability."""
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
