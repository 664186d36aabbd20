"""A driver to be killed: streams topics into a Parquet table until it is told to stop.

    python archive_driver.py ADDRESSES PATTERN DIRECTORY ROWS_A_BATCH

Prints a line when it is up and one for each batch. When its standard input ends, it reads what is
left, and ends.
"""

import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_nsq.session import local_session

POLL_S = 0.05
# Up in less time: C1 only, and no shared classes to look for.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    addresses, pattern, directory, rows_max = sys.argv[1:]
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
        return archive(spark, addresses, pattern, directory, rows_max)

    query = writer().start(f"{directory}/table")
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
    query = writer().trigger(availableNow=True).start(f"{directory}/table")
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


def archive(
    spark: SparkSession, addresses: str, pattern: str, directory: str, rows_max: str
) -> DataStreamWriter:
    reader = spark.readStream.format("nsq").options(
        nsqd=addresses,
        subscribePattern=pattern,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=rows_max,
    )
    return (
        reader.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
    )


if __name__ == "__main__":
    main()
