"""The data source: what Spark finds under the name `nsq`."""

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_nsq.batch import BatchReader
from pyspark_nsq.columns import SCHEMA, arrow_schema
from pyspark_nsq.options import check_names, parse_read, parse_write
from pyspark_nsq.sink import BatchWriter, StreamWriter, check_columns, check_nodes
from pyspark_nsq.stream import StreamReader


class DefaultSource(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        check_names(self.options)
        # Told when the DataFrame is made rather than when it is used, where that can be known.
        if any(name.lower().startswith("subscribe") for name in self.options):
            parse_read(self.options, streaming=False)

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_read(self.options, streaming=False), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_read(self.options, streaming=True), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = parse_write(self.options)
        check_columns(schema, options, overwrite=overwrite)
        check_nodes(options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = parse_write(self.options)
        check_columns(schema, options, overwrite=False)
        return StreamWriter(options)
