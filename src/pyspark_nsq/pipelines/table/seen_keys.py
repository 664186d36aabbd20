"""The keys of the rows that an archive with --dedupe has kept, in files of its checkpoint.

    CHECKPOINT/keys/42          the keys of the rows that batch 42 kept, and their timestamps
    CHECKPOINT/keys/41-all      the keys of batch 41 and those before it, put together

A batch compares its rows with the keys of the batches before it, so a batch that is repeated after
a crash keeps the same rows. Messages of the quarantine are not here: one that is corrected and sent
again is kept.

A key is forgotten when a message of its topic is kept that was published `watermark` later. Time is
the time of publishing: it makes no difference when, in how many batches, or how often the archive
reads. A clock that is ahead of this machine's counts as this machine's.

Keys are put together in steps, and a kill may come between any two:

| step | after a kill there |
|---|---|
| write the files of `41-all` | without its mark it is not read; it is written again |
| write `41-all/_written` | `41-all` replaces all directories up to 41: those are not read |
| delete those | the next batch deletes the rest |

The files are ORC, not Parquet: the checkpoint may be in the directory of a Parquet table, where
readers such as DuckDB take every `*.parquet` for a part of the table. Knows keys; must not know
bodies.
"""

import re

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pyspark_nsq.pipelines.json_events.events import KEY
from pyspark_nsq.pipelines.table.storage import Storage

KEYS = "keys"  # the directory in the checkpoint
FILES_MAX = 40  # directories of batches, before they are put together
TOGETHER = "-all"
WRITTEN = "_written"  # in a directory that is put together, when all of it is there
_SCHEMA = f"topic STRING, {KEY} STRING, published TIMESTAMP"
_NAME = re.compile(rf"(\d+)({TOGETHER})?")


class SeenKeys:
    def __init__(self, spark: SparkSession, checkpoint: str, watermark: str) -> None:
        self._spark = spark
        self._watermark = watermark
        self._storage = Storage(spark, f"{checkpoint.rstrip('/')}/{KEYS}")

    def fresh(self, rows: DataFrame, batch: int) -> DataFrame:
        """The rows whose key no batch before has kept within the watermark, and of those with the
        same key the first. Rows without a key are all kept."""
        return unseen(rows, self._known(batch))

    def keep(self, rows: DataFrame, batch: int) -> None:
        """Note the keys of the rows that a batch keeps; call this before they are in the table."""
        keys_of(rows).write.mode("overwrite").orc(self._storage.path(str(batch)))

    def put_together(self, batch: int) -> None:
        """Merge the files of batches before this one if there are many; old keys are left out."""
        names = self._names(batch)
        if len(names) > FILES_MAX:
            together = f"{max(_number(name) for name in names)}{TOGETHER}"
            keys = self._known(batch).coalesce(1)
            keys.write.mode("overwrite").orc(self._storage.path(together))
            self._storage.write_text(f"{together}/{WRITTEN}", "")
            names = [together]
        self._delete_replaced(names)

    def _delete_replaced(self, names: list[str]) -> None:
        """Delete the directories that one of `names` replaces."""
        together = [name for name in names if name.endswith(TOGETHER)]
        for name in self._storage.names() if together else ():
            is_ours = _NAME.fullmatch(name) is not None
            if is_ours and name not in together and _number(name) <= _number(together[0]):
                self._storage.delete(name)

    def _known(self, batch: int) -> DataFrame:
        paths = [self._storage.path(name) for name in self._names(batch)]
        if not paths:
            return self._spark.createDataFrame([], _SCHEMA)
        return recent(self._spark.read.schema(_SCHEMA).orc(paths), self._watermark)

    def _names(self, batch: int) -> list[str]:
        """The directories with the keys of the batches before this one, each key in one of them."""
        names = [n for n in self._storage.names() if _NAME.fullmatch(n) and _number(n) < batch]
        whole = [n for n in names if n.endswith(TOGETHER) and self._is_written(n)]
        newest = max(whole, key=_number, default=None)
        if newest is None:
            return sorted(n for n in names if not n.endswith(TOGETHER))
        later = (n for n in names if not n.endswith(TOGETHER) and _number(n) > _number(newest))
        return [newest, *sorted(later)]

    def _is_written(self, name: str) -> bool:
        return self._storage.exists(f"{name}/{WRITTEN}")


def keys_of(rows: DataFrame) -> DataFrame:
    """The keys of the rows that have one, and when those were published."""
    own = F.col("timestamp").alias("published")
    return rows.where(F.col(KEY).isNotNull()).select("topic", KEY, own)


def recent(keys: DataFrame, watermark: str) -> DataFrame:
    """The keys that are not older than the newest of their topic by the watermark."""
    newest = F.least(F.max("published"), F.current_timestamp())
    until = newest - F.expr(f"INTERVAL '{watermark}'")
    forgotten = keys.groupBy("topic").agg(until.alias("_forgotten"))
    return keys.join(forgotten, "topic").where("published > _forgotten").drop("_forgotten")


def unseen(rows: DataFrame, known: DataFrame) -> DataFrame:
    """The first of the rows with the same key, if it is not known; all rows without a key."""
    own = F.coalesce(KEY, F.concat_ws("/", F.lit("no key"), "node", "topic", "id"))
    order = Window.partitionBy("topic", own).orderBy("timestamp", "node", "offset")
    first = rows.withColumn("_number", F.row_number().over(order)).where("_number = 1")
    keys = known.select("topic", KEY).distinct()
    return first.drop("_number").join(keys, ["topic", KEY], "left_anti")


def _number(name: str) -> int:
    return int(name.removesuffix(TOGETHER))
