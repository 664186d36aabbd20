"""The archive pipeline as a library: the parts of `pumpline pipeline archive`, by hand.

    NSQD=127.0.0.1:4151 TOPIC=orders TABLE=tables/orders python examples/spark_archive.py

It needs an nsqd of pumpline (its HTTP address), `pip install 'pumpline[spark]'` and Java 17.
"""

import os

from pyspark_nsq.pipelines.archive import Archive
from pyspark_nsq.pipelines.json_events.events import schema_from_ddl
from pyspark_nsq.pipelines.table.layout import PARTITION_BY
from pyspark_nsq.pipelines.table.table import ParquetTable
from pyspark_nsq.session import local_session

NSQD = os.environ.get("NSQD", "127.0.0.1:4151")
TOPIC = os.environ.get("TOPIC", "orders")
TABLE = os.environ.get("TABLE", "tables/orders")

spark = local_session("archive by hand")
archive = Archive(
    spark=spark,
    table=ParquetTable(spark, TABLE, PARTITION_BY),
    quarantine=ParquetTable(spark, f"{TABLE}-quarantine", PARTITION_BY),
    checkpoint=f"{TABLE}/_checkpoint",
    schema=schema_from_ddl("order_id BIGINT, city STRING"),
)
options = {"nsqd": NSQD, "subscribe": TOPIC, "startingOffsets": "earliest", "hold": "archive"}
query = archive.start(options, every="1 second", once=True)
query.awaitTermination()

kept = spark.read.parquet(TABLE)
kept.groupBy("event.city").count().show()
print(f"{kept.count()} rows, {archive.note()}")
