"""The data source that Spark registers as `nsq`, and the documentation of its options."""

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_nsq.columns import SCHEMA, arrow_schema
from pyspark_nsq.options import check_names, from_catalog, parse_read, parse_write
from pyspark_nsq.reading.batch import BatchReader
from pyspark_nsq.reading.stream import StreamReader


class DefaultSource(DataSource):
    """Reads NSQ topics as tables, in batches and streams, and writes rows to topics.

    Columns: `topic STRING, node STRING, offset BIGINT, timestamp TIMESTAMP, id STRING,
    attempts INT, body BINARY`. (node, topic, offset) is the identity of a row. A schema given by the
    user chooses among them, and what is left out is not decoded.

    Reading:

    | option | meaning | default |
    |---|---|---|
    | `nsqd` | HTTP addresses of nsqds, with commas | |
    | `lookupd` | HTTP addresses of nsqlookupds, which know the nsqds; this or `nsqd`, or both | |
    | `subscribe` | topics, with commas | |
    | `subscribePattern` | a regular expression for whole topic names, instead of `subscribe` | |
    | `startingOffsets` | `earliest`, `latest`, or JSON: `{"topic": {"node": offset}}`; -1 is the end, -2 the beginning, `{"*": {"*": -2}}` all others; of a stream without a checkpoint | batch `earliest`, stream `latest` |
    | `endingOffsets` | `latest` or JSON; batch only | `latest` |
    | `startingTimestamp` | ms since 1970 or ISO 8601; instead of `startingOffsets` | |
    | `endingTimestamp` | the same; exclusive; batch only | |
    | `parallelism` | cores of all executors: a read of some MiB has as many partitions; on a cluster, give `spark.sparkContext.defaultParallelism`, as the pipelines do | the cores of the driver's machine |
    | `minPartitions` | partitions to make at least, also of a small read | 1 |
    | `maxRecordsPerPartition` | rows in a partition at most | 128 MiB of rows |
    | `maxOffsetsPerTrigger` | rows in a micro-batch at most, shared by lag | as the bytes allow |
    | `maxBytesPerTrigger` | bytes in it at most, by the average row of each log | 512 MiB |
    | `minOffsetsPerTrigger` | a micro-batch waits for so many rows | none |
    | `maxTriggerDelay` | but not longer than this after the last one | 15m |
    | `failOnDataLoss` | fail when rows are retired or a topic was deleted; or read what is there, with a warning | `true` |
    | `withoutNode` | nodes that may be missing, with commas, by name (column `node`) or HTTP address; one that answers is read | none may |
    | `expectNodes` | so many nodes must answer, or a read that must be complete fails | those that nsqlookupd lists or has lost |
    | `hold` | name of a hold: nodes keep what this stream has not committed, and show it as a channel | none |
    | `holdBytesMax` | bytes that the hold may keep before a node drops it | the node's `--hold-bytes-max` |
    | `holdDescription` | what nsqadmin and `pumpline holds` show beside it, to tell which query it is of | Spark, and the driver's machine |
    | `fetchBytes` | bytes asked for at once | 4 MiB |
    | `localFiles` | tasks on a node's machine read its files themselves, if they may | `true` |

    Writing needs a column `body` (binary or string):

    | option | meaning | default |
    |---|---|---|
    | `nsqd` | HTTP addresses of nsqds; chunks go to them in turn, and to no other while one is away | |
    | `topic` | where to publish | a column `topic` says it |
    | `writeId` | of a batch write: a repeat under the same name is known as one, and not published again | drawn |
    | `chunkBytes`, `chunkRows` | size of an MPUB at most | 1 MiB, 20,000 |

    Both:

    | option | meaning | default |
    |---|---|---|
    | `requestTimeoutMs` | for a node to answer | 30,000 |
    | `retryForMs` | how long a node may be away before a task fails | 60,000 |
    | `accessToken` | for nodes with `--http-token-file` | |
    | `accessTokenFile` | a file with the token, instead; read on the driver and on every executor, for each request | |
    | `tlsCaFile`, `tlsCertFile`, `tlsKeyFile` | for addresses with `https://` | |

    >>> orders = (
    ...     spark.read.format("nsq")
    ...     .option("nsqd", "127.0.0.1:4151")
    ...     .option("subscribe", "orders")
    ...     .load()
    ... )
    >>> orders.selectExpr("CAST(body AS STRING)").show(truncate=False)
    +----------------------+
    |body                  |
    +----------------------+
    |{"order":1,"total":20}|
    +----------------------+
    <BLANKLINE>
    """  # noqa: E501 - the rows of a table

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = from_catalog(options)
        check_names(self.options)
        # Wrong options are reported when the DataFrame is made, not only when it is used.
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
        from pyspark_nsq.writing import (
            sink,
        )  # late: 60 ms that reading does without

        options = parse_write(self.options)
        sink.check_columns(schema, options, overwrite=overwrite)
        if options.write_id is None:  # a named write is part of a pipeline, which waits for nodes
            sink.check_nodes(options)
        return sink.BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_nsq.writing import sink

        options = parse_write(self.options)
        sink.check_columns(schema, options, overwrite=False)
        return sink.StreamWriter(options)
