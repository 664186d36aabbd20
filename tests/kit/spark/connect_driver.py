"""A driver over Spark Connect: reads, queries, streams and writes a topic, and prints what it saw.

python connect_driver.py ADDRESS TOPIC DIRECTORY
"""

import json
import os
import sys

from pyspark.sql import SparkSession

from pyspark_nsq.session import require_java


def main() -> None:
    address, topic, directory = sys.argv[1:]
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    seen = {"session": type(spark).__module__}
    said = {"nsqd": address, "subscribe": topic}
    seen["batch"] = spark.read.format("nsq").options(**said).load().count()
    spark.sql(
        f"CREATE TEMPORARY VIEW rows USING nsq OPTIONS (nsqd '{address}', subscribe '{topic}')"
    )
    seen["sql"] = spark.sql("SELECT count(DISTINCT offset) AS n FROM rows").collect()[0]["n"]
    stream = spark.readStream.format("nsq").options(**said, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/table")
    )
    query.awaitTermination()
    seen["stream"] = spark.read.parquet(f"{directory}/table").count()
    frame = spark.range(500).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("nsq").mode("append").options(nsqd=address, topic=f"{topic}-out").save()
    try:
        spark.read.format("nsq").options(nsqd=address, subscripe=topic).load().count()
    except Exception as error:  # whatever class Connect makes of it: its text is looked at
        seen["error"] = str(error)
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main()
