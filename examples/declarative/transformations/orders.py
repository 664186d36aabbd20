"""A topic as a streaming table, and a view over it, in Spark's declarative pipelines.

Spark remembers how far each table has read. A run reads what is new, and ends.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
NSQD = spark.conf.get("orders.nsqd")
TOPIC = spark.conf.get("orders.topic")


@dp.table
def orders() -> DataFrame:
    """Every order once, as it was published."""
    messages = (
        spark.readStream.format("nsq")
        .option("nsqd", NSQD)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("body").cast("string"), "order_id BIGINT, amount DOUBLE, city STRING")
    return messages.select("node", "offset", "timestamp", order.alias("event")).select(
        "node", "offset", "timestamp", "event.*"
    )


@dp.materialized_view
def cities() -> DataFrame:
    """The amount that each city has ordered."""
    return spark.read.table("orders").groupBy("city").agg(F.sum("amount").alias("amount"))
