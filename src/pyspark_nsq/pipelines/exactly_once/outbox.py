"""Rows of a batch on their way into topics, written down before the first of them is published.

A batch that a kill interrupts is published again with the same tokens, by which nodes know what
they have. That needs the same rows in the same order, which Spark gives for a topic with nothing
but projections and filters on it, and for nothing else: a shuffle brings rows in another order, and
rand() other rows. Such a batch is kept in files until the next one, and published from them.
"""

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.pipelines.table.storage import Storage

DONE = "_written"
# What keeps rows in order and changes them one by one, as Spark calls it.
REPEATABLE = frozenset(
    "Project Filter Generate SubqueryAlias View EventTimeWatermark Union LocalRelation "
    "StreamingRelation StreamingRelationV2 StreamingExecutionRelation".split()
)


@dataclass(slots=True)
class Outbox:
    """The batches of one stream: `query_id` is its name in tokens."""

    spark: SparkSession
    directory: str
    query_id: str
    target: dict[str, str]  # options of the write
    storage: Storage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.spark, self.directory)

    def keep(self, batch: int, rows: DataFrame) -> DataFrame:
        """The rows of the batch: these, or those of before if it was kept already."""
        path = self.storage.path(str(batch))
        if not self.storage.exists(f"{batch}/{DONE}"):
            rows.write.mode("overwrite").parquet(path)
            self.storage.write_text(f"{batch}/{DONE}", "")
        else:
            # Read all the same: that is how the state of a stream, of windows say, moves on.
            rows.write.format("noop").mode("overwrite").save()
        for name in self.storage.names():
            if name != str(batch):
                self.storage.delete(name)
        return self.spark.read.schema(rows.schema).parquet(path)

    def publish(self, batch: int, messages: DataFrame) -> None:
        """Once, however often; `messages` are made of what `keep` gave."""
        writer = messages.write.format("nsq").mode("append").options(**self.target)
        writer.option("writeId", f"{self.query_id}/{batch}").save()


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
