"""Streaming queries for tests: from topics into a Parquet table, and what is in the table."""

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.kit.daemons import Nsqd, wait_until
from tests.spark.conftest import QUICK


class Stream:
    """A query from `nodes` to a table, which can be stopped and started again."""

    def __init__(self, spark: SparkSession, work: Path, **options: str) -> None:
        self._spark = spark
        self.options = {**QUICK, "startingOffsets": "earliest", **options}
        self.table = str(work / "table")
        self.checkpoint = str(work / "checkpoint")

    def start(self, *, available_now: bool = False, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("nsq").options(**{**self.options, **options})
        writer = (
            reader.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", self.checkpoint)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(self.table)

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Reads everything there is; returns the progress of every batch."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(60), "the query does not end"
        return [dict(progress) for progress in query.recentProgress]

    def bodies(self) -> Counter[bytes]:
        frame = self._spark.read.parquet(self.table)
        return Counter(bytes(row.body) for row in frame.select("body").collect())


def addresses(*nodes: Nsqd) -> str:
    return ",".join(node.http_address for node in nodes)


def wait_for_rows(query: StreamingQuery, count: int, timeout_s: float = 40) -> None:
    """Until the query has read this many rows since it was started."""

    def read() -> bool:
        if not query.isActive and query.exception() is not None:
            raise AssertionError(str(query.exception()))
        return sum(progress["numInputRows"] for progress in query.recentProgress) >= count

    wait_until(read, timeout_s)
