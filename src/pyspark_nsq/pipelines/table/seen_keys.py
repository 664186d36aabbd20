"""The keys of the rows that an archive with --dedupe has kept, in files of its checkpoint.

    CHECKPOINT/keys/42          the keys of the rows that batch 42 kept, and when it read them
    CHECKPOINT/keys/41-all      the keys of batch 41 and those before it, put together

A batch compares its rows with the keys of the batches before it, so a batch that is repeated after
a crash keeps the same rows. A key that is in two files is only known twice, so no kill does harm
while files are put together. Messages of the quarantine are not here: one that is corrected and
sent again is kept. Knows keys; must not know bodies.
"""

import re

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pyspark_nsq.pipelines.json_events.events import KEY
from pyspark_nsq.pipelines.table.storage import Storage

KEYS = "keys"  # the directory in the checkpoint
FILES_MAX = 40  # directories of batches, before they are put together
_SCHEMA = f"topic STRING, {KEY} STRING, read_at TIMESTAMP"
_NAME = re.compile(r"(\d+)(-all)?")


class SeenKeys:
    def __init__(self, spark: SparkSession, checkpoint: str, watermark: str) -> None:
        self._spark = spark
        self._watermark = watermark
        self._storage = Storage(spark, f"{checkpoint.rstrip('/')}/{KEYS}")

    def fresh(self, rows: DataFrame, batch: int) -> DataFrame:
        """The rows whose key no batch before has kept within the watermark, and of those with the
        same key the first. Rows without a key are all kept."""
        own = F.coalesce(KEY, F.concat_ws("/", F.lit("no key"), "node", "topic", "id"))
        order = Window.partitionBy("topic", own).orderBy("timestamp", "node", "offset")
        first = rows.withColumn("_number", F.row_number().over(order)).where("_number = 1")
        return first.drop("_number").join(self._known(batch), ["topic", KEY], "left_anti")

    def keep(self, rows: DataFrame, batch: int) -> None:
        """Note the keys of the rows that a batch keeps; call this before they are in the table."""
        keys = rows.where(F.col(KEY).isNotNull()).select("topic", KEY)
        keys = keys.withColumn("read_at", F.current_timestamp())
        keys.write.mode("overwrite").parquet(self._storage.path(str(batch)))

    def put_together(self, batch: int) -> None:
        """Merge the files of batches before this one if there are many; old keys are left out."""
        names = self._names(batch)
        if len(names) <= FILES_MAX:
            return
        last = max(_number(name) for name in names)
        keys = self._known(batch, distinct=False)
        keys.coalesce(1).write.mode("overwrite").parquet(self._storage.path(f"{last}-all"))
        for name in names:
            if name != f"{last}-all":
                self._storage.delete(name)

    def _known(self, batch: int, *, distinct: bool = True) -> DataFrame:
        paths = [self._storage.path(name) for name in self._names(batch)]
        if not paths:
            keys = self._spark.createDataFrame([], _SCHEMA)
        else:
            keys = self._spark.read.schema(_SCHEMA).parquet(*paths)
        keys = keys.where(f"read_at > now() - INTERVAL '{self._watermark}'")
        return keys.select("topic", KEY).distinct() if distinct else keys

    def _names(self, batch: int) -> list[str]:
        names = self._storage.names()
        return sorted(n for n in names if _NAME.fullmatch(n) and _number(n) < batch)


def _number(name: str) -> int:
    return int(name.removesuffix("-all"))
