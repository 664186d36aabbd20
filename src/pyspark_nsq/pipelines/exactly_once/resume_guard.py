"""Refuses to resume a half-published batch with settings that would publish rows twice.

A node recognises a repeated chunk if it has the same rows and goes to the same node (`sink`). How
rows are cut into chunks, and to which nodes they go, depends on settings that a user may change
between two starts. That is harmless between batches; within a batch, rows would be published twice.
So these settings are noted in the checkpoint, and a start with other settings is refused while a
batch is half done.
"""

import json
import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.options import parse_write
from pyspark_nsq.pipelines.table.storage import Storage

NOTE = "publishing.json"  # in the checkpoint
ARROW = (  # these decide how many rows Spark passes to the sink at once
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)
PARALLELISM = "spark.default.parallelism"


def straight_cut(
    spark: SparkSession, reading: Mapping[str, str], target: dict[str, str]
) -> dict[str, str]:
    """The settings that the chunks depend on, when a stream goes directly from topic to topic."""
    given = {name.lower(): value for name, value in reading.items()}
    return {
        **_cut(spark, target),
        "parallelism": given.get("parallelism", str(os.cpu_count() or 1)),
        "minPartitions": given.get("minpartitions", ""),
        "maxRecordsPerPartition": given.get("maxrecordsperpartition", ""),
    }


def outbox_cut(spark: SparkSession, target: dict[str, str]) -> dict[str, str]:
    """The same for a stream that goes through the outbox, whose files Spark splits by cores."""
    return {**_cut(spark, target), PARALLELISM: str(spark.sparkContext.defaultParallelism)}


def require_same(checkpoint: Storage, cut: dict[str, str]) -> None:
    """Raise NsqError if a batch is half done with other settings; otherwise note these."""
    text = checkpoint.read_text(NOTE)
    before: dict[str, str] | None = json.loads(text) if text else None
    if before == cut:
        return
    batch = unfinished_batch(checkpoint)
    if before is not None and batch is not None:
        others = [name for name in {**before, **cut} if before.get(name) != cut.get(name)]
        was = " and ".join(f"{name}={before.get(name, '')}" for name in others)
        now = " and ".join(f"{name}={cut.get(name, '')}" for name in others)
        raise NsqError(
            f"batch {batch} was interrupted while it was published with {was}, not {now}: what had "
            "arrived of it would be published again. Start it as before until that batch is done, "
            f"or delete {checkpoint.path(NOTE)} to have it published again"
        )
    checkpoint.write_text(NOTE, json.dumps(cut))


def unfinished_batch(checkpoint: Storage) -> int | None:
    """The batch that Spark will repeat, as it was begun and not finished; None if there is none."""
    begun, done = (max(checkpoint.batches(log), default=-1) for log in ("offsets", "commits"))
    return begun if begun > done else None


def arrow_settings(spark: SparkSession) -> dict[str, str]:
    return {name: str(spark.conf.get(name)) for name in ARROW}


def _cut(spark: SparkSession, target: dict[str, str]) -> dict[str, str]:
    return {"nsqd": ",".join(sorted(parse_write(target).nsqd)), **arrow_settings(spark)}
