"""A driver to be killed: streams topics into a Parquet table, or a topic, until it is told to stop.

    python archive_driver.py ADDRESSES PATTERN DIRECTORY ROWS_A_BATCH [TOPIC]

Prints a line when it is up and one for each batch. When its standard input ends, it reads what is
left, and ends.
"""

import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_nsq.session import local_session

POLL_S = 0.05
CHUNK_ROWS = 25  # many to a batch, so that a kill finds some of them published
# Up in less time: C1 only, and no shared classes to look for.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    addresses, pattern, directory, rows_max, *to = sys.argv[1:]
    spark = local_session(
        "archive driver",
        master="local[2,4]",
        settings={
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.local.dir": f"{directory}/local",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")

    def writer() -> DataStreamWriter:
        rows = messages(spark, addresses, pattern, rows_max)
        made = rows.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
        if not to:
            return made.format("parquet").option("path", f"{directory}/table")
        return made.format("nsq").options(nsqd=addresses, topic=to[0], chunkRows=CHUNK_ROWS)

    query = writer().start()
    print("up", flush=True)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    done = -1
    while not over.wait(POLL_S):
        if (failure := query.exception()) is not None:
            raise failure
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > done and progress["numInputRows"]:
            done = progress["batchId"]
            print("batch", done, progress["numInputRows"], flush=True)
    query.stop()
    query = writer().trigger(availableNow=True).start()
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


def messages(spark: SparkSession, addresses: str, pattern: str, rows_max: str) -> DataFrame:
    reader = spark.readStream.format("nsq").options(
        nsqd=addresses,
        subscribePattern=pattern,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=rows_max,
    )
    return reader.load()


if __name__ == "__main__":
    main()
