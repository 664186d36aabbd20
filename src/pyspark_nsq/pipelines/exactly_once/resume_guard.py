"""Whether a batch that a kill interrupted will be published again as it was.

Nodes know a chunk when it comes again with the same rows, to the same node (`sink`). How rows are
cut into chunks, and to which nodes these go, depends on settings that a user may change between two
starts. That is harmless between batches; within one it would publish rows twice. So what a batch is
published with is noted in the checkpoint, and another start with a batch half done is refused.
"""

import json
import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.options import parse_write
from pyspark_nsq.pipelines.table.storage import Storage

NOTE = "publishing.json"  # in the checkpoint
ARROW = (  # how many rows Spark hands to the sink at once
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
)
PARALLELISM = "spark.default.parallelism"


def straight_cut(
    spark: SparkSession, reading: Mapping[str, str], target: dict[str, str]
) -> dict[str, str]:
    """What the chunks of a stream depend on that goes from this source to nodes."""
    given = {name.lower(): value for name, value in reading.items()}
    return {
        **_cut(spark, target),
        "minPartitions": given.get("minpartitions", str(os.cpu_count() or 1)),
        "maxRecordsPerPartition": given.get("maxrecordsperpartition", ""),
    }


def outbox_cut(spark: SparkSession, target: dict[str, str]) -> dict[str, str]:
    """The same of one that goes by way of files, which Spark shares out among its cores."""
    return {**_cut(spark, target), PARALLELISM: str(spark.sparkContext.defaultParallelism)}


def require_same(checkpoint: Storage, cut: dict[str, str]) -> None:
    """NsqError if a batch is half done that was published with another cut; else notes this one."""
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
    """The batch that Spark will begin with, if it was begun before."""
    begun, done = (
        max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=-1)
        for log in ("offsets", "commits")
    )
    return begun if begun > done else None


def arrow_settings(spark: SparkSession) -> dict[str, str]:
    return {name: str(spark.conf.get(name)) for name in ARROW}


def _cut(spark: SparkSession, target: dict[str, str]) -> dict[str, str]:
    return {"nsqd": ",".join(sorted(parse_write(target).nsqd)), **arrow_settings(spark)}
