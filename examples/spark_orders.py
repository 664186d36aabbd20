"""Orders in NSQ, seen from Spark. Run it cell by cell in an editor that knows `# %%`, or at once.

    NSQD=127.0.0.1:4151 python examples/spark_orders.py

It needs an nsqd of pumpline (its HTTP address), `pip install 'pumpline[spark]'` and Java 17.
"""

# %% A session. Nothing has to be registered; any other Spark session works as well.
import os
import tempfile
import time

from pyspark_nsq import lag
from pyspark_nsq.session import local_session

NSQD = os.environ.get("NSQD", "127.0.0.1:4151")
TOPIC = f"orders-{time.time_ns()}"
HOME = tempfile.mkdtemp(prefix="spark-orders-")

spark = local_session("orders")

# %% A thousand orders, published from a DataFrame. Any NSQ client could have published them.
orders = spark.range(1000).selectExpr(
    "to_json(named_struct('order', id, 'customer', id % 7, 'total', 10 + id % 90)) AS body"
)
orders.write.format("nsq").mode("append").options(nsqd=NSQD, topic=TOPIC).save()

# %% The topic is a table.
table = spark.read.format("nsq").options(nsqd=NSQD, subscribe=TOPIC).load()
table.selectExpr("topic", "offset", "timestamp", "CAST(body AS STRING) AS body").show(5, False)

# %% In SQL.
spark.sql(
    f"""
    CREATE OR REPLACE TEMPORARY VIEW orders
    USING nsq OPTIONS (nsqd '{NSQD}', subscribe '{TOPIC}')
    """
)
totals = spark.sql(
    """
    SELECT o.customer, count(*) AS orders, sum(o.total) AS total
    FROM (
      SELECT from_json(CAST(body AS STRING), 'order INT, customer INT, total INT') AS o FROM orders
    )
    GROUP BY o.customer ORDER BY o.customer
    """
)
totals.show()

# %% A stream into a Parquet table: each row is there once, whatever is killed in between.
stream = (
    spark.readStream.format("nsq")
    .options(nsqd=NSQD, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=400)
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{HOME}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{HOME}/table")
)
stream.awaitTermination()
for progress in stream.recentProgress:
    print(f"batch {progress['batchId']}: {progress['numInputRows']} rows, lag {lag(progress)}")
archived = spark.read.parquet(f"{HOME}/table")
print(archived.count(), "rows archived in", HOME)

# %% A stream that publishes expensive orders to another topic.
dear = (
    spark.readStream.format("nsq")
    .options(nsqd=NSQD, subscribe=TOPIC, startingOffsets="earliest")
    .load()
    .selectExpr("CAST(body AS STRING) AS body")
    .where("get_json_object(body, '$.total') >= 90")
    .writeStream.format("nsq")
    .options(nsqd=NSQD, topic=f"{TOPIC}-dear", checkpointLocation=f"{HOME}/dear")
    .trigger(availableNow=True)
    .start()
)
dear.awaitTermination()
dear_count = spark.read.format("nsq").options(nsqd=NSQD, subscribe=f"{TOPIC}-dear").load().count()
print(dear_count, "orders of 90 or more")
