"""The outbox: writes the rows of a batch to files before the first of them is published.

A batch that a kill interrupts is published again with the same publish tokens, so that nodes skip
what they have. That needs the same rows in the same order. Spark guarantees this for a topic with
projections and filters only: a shuffle changes the order, and rand() the rows. Any other batch is
kept in files until the next one, and published from them.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.pipelines.table.storage import Storage

DONE = "_written"
# What Spark says the time by; a name of a column that is like it does no harm.
_CLOCKS = re.compile(r"now|current|curdate|localtime|unix_timestamp|today|yesterday", re.I)
# Spark's names of plan nodes that keep the order, and change rows one by one.
REPEATABLE = frozenset(
    "Project Filter Generate SubqueryAlias View EventTimeWatermark Union LocalRelation "
    "StreamingRelation StreamingRelationV2 StreamingExecutionRelation".split()
)


@dataclass(slots=True)
class BatchOutbox:
    """The batches of one stream; `query_id` becomes part of the publish tokens."""

    spark: SparkSession
    directory: str
    query_id: str
    target: dict[str, str]  # options for writing
    storage: Storage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.spark, self.directory)

    def keep(self, batch: int, rows: DataFrame) -> DataFrame:
        """Write the rows to files, unless the batch is there; return the rows in the files."""
        path = self.storage.path(str(batch))
        if not self.storage.exists(f"{batch}/{DONE}"):
            rows.write.mode("overwrite").parquet(path)
            self.storage.write_text(f"{batch}/{DONE}", "")
        else:
            # Compute them all the same: that updates the state of the stream, as of windows.
            rows.write.format("noop").mode("overwrite").save()
        for name in self.storage.names():
            if name != str(batch):
                self.storage.delete(name)
        return self.spark.read.schema(rows.schema).parquet(path)

    def publish(self, batch: int, messages: DataFrame) -> None:
        """Publish messages made of what `keep` returned; a repeat publishes nothing twice."""
        writer = messages.write.format("nsq").mode("append").options(**self.target)
        writer.option("writeId", f"{self.query_id}/{batch}").save()


def is_fixed(frame: DataFrame, condition: str) -> bool:
    """Whether a condition of a frame is true for the same rows whenever it is computed."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    if not plan.deterministic() or not plan.subqueriesAll().isEmpty():
        return False
    return _CLOCKS.search(condition) is None


def is_repeatable(frame: DataFrame) -> bool:
    """Whether the same messages always give the same rows, in the same order."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    if not plan.deterministic() or not plan.subqueriesAll().isEmpty():
        return False
    todo = [plan]
    while todo:
        node = todo.pop()
        if node.nodeName() not in REPEATABLE:
            return False
        children = node.children()
        todo += [children.apply(number) for number in range(children.size())]
    return True
