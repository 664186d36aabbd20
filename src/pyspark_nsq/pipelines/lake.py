"""Delta and Iceberg tables, where the user's Spark has them: the same calls as a Parquet table.

Both know transactions, so a batch that is repeated is recognised by what the table itself recorded:
Delta by `txnAppId` and `txnVersion`, Iceberg by a property of the snapshot. Schemas grow and small
files are put together by their own means. Nothing here is needed for Parquet.
"""

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_nsq.errors import NsqError

DELTA, ICEBERG = "delta", "iceberg"
BATCH_PROPERTY = "pumpline-batch"
_CLASSES = {
    DELTA: "io.delta.sql.DeltaSparkSessionExtension",
    ICEBERG: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_PACKAGES = {
    DELTA: "io.delta:delta-spark_2.13:VERSION and spark.sql.extensions=" + _CLASSES[DELTA],
    ICEBERG: "org.apache.iceberg:iceberg-spark-runtime-VERSION, a catalog in spark.sql.catalog.*, "
    "and spark.sql.extensions=" + _CLASSES[ICEBERG],
}


def require(spark: SparkSession, kind: str) -> None:
    """NsqError, with what to add, unless this Spark has the format."""
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass(_CLASSES[kind])
    except Py4JJavaError:
        raise NsqError(
            f"this Spark has no {kind.capitalize()}: add it by --conf spark.jars.packages="
            f"{_PACKAGES[kind]}, or archive to Parquet (--format parquet)"
        ) from None


@dataclass(slots=True)
class LakeTable:
    """`name` is a path for Delta, and catalog.database.table for Iceberg."""

    spark: SparkSession
    kind: str
    name: str
    partition_by: tuple[str, ...]
    compacted_files: int = 0

    def claim(self, checkpoint: str, query_id: str | None) -> None:
        require(self.spark, self.kind)

    def keep_settings(self, text: str) -> None:
        """For who unites it with a live topic, which is for Parquet alone so far."""

    def event_schema(self) -> StructType:
        try:
            reader = self.spark.read
            table = (
                reader.format(DELTA).load(self.name) if self._is_delta else reader.table(self.name)
            )
        except AnalysisException:
            return StructType()  # not there yet
        fields = {field.name: field.dataType for field in table.schema.fields}
        event = fields.get("event")
        return event if isinstance(event, StructType) else StructType()

    def keep_event_schema(self, batch: int, schema: StructType) -> None:
        """The table keeps its own."""

    def append(self, batch: int, rows: DataFrame | None, *, query_id: str, checkpoint: str) -> None:
        if rows is None:
            return
        if self._is_delta:
            self._append_delta(batch, rows, query_id)
        else:
            self._append_iceberg(f"{query_id}/{batch}", rows)

    @property
    def _is_delta(self) -> bool:
        return self.kind == DELTA

    def _append_delta(self, batch: int, rows: DataFrame, query_id: str) -> None:
        writer = rows.write.format(DELTA).mode("append").partitionBy(*self.partition_by)
        writer = writer.option("mergeSchema", "true")
        writer.option("txnAppId", query_id).option("txnVersion", batch).save(self.name)

    def _append_iceberg(self, batch: str, rows: DataFrame) -> None:
        marked = rows.writeTo(self.name).option(f"snapshot-property.{BATCH_PROPERTY}", batch)
        if not self.spark.catalog.tableExists(self.name):
            partitions = [F.col(name) for name in self.partition_by]
            marked.using(ICEBERG).tableProperty(
                "write.spark.accept-any-schema", "true"
            ).partitionedBy(*partitions).create()
            return
        snapshots = self.spark.read.table(f"{self.name}.snapshots")
        done = snapshots.where(F.col("summary")[BATCH_PROPERTY] == batch)
        if done.isEmpty():
            marked.option("mergeSchema", "true").append()
