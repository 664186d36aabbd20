"""Delta and Iceberg tables, where the user's Spark has them: the same calls as a Parquet table.

Both know transactions, so a batch that is repeated is recognised by what the table itself recorded:
Delta by `txnAppId` and `txnVersion`, Iceberg by a property of the snapshot (which has to be there:
who expires snapshots leaves some days of them). Schemas grow and small files are put together by
their own means. Nothing here is needed for Parquet, and nothing here was ever run: it follows the
documentation and the sources of Delta 4.3 and Iceberg 1.11 for Spark 4.
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
_PACKAGES = {  # with the versions of Spark, Scala and their own
    DELTA: "io.delta:delta-spark_4.1_2.13:4.3.0",
    ICEBERG: "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}
_CATALOGS = {
    DELTA: "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ICEBERG: "a catalog, spark.sql.catalog.NAME=org.apache.iceberg.spark.SparkCatalog",
}


def require(spark: SparkSession, kind: str) -> None:
    """NsqError, with what to add, unless this Spark has the format."""
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass(_CLASSES[kind])
    except Py4JJavaError:
        raise NsqError(
            f"this Spark has no {kind.capitalize()}: add it by --conf, as in spark.jars.packages="
            f"{_PACKAGES[kind]}, spark.sql.extensions={_CLASSES[kind]} and {_CATALOGS[kind]}; or "
            "archive to Parquet (--format parquet)"
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
        # Of a new table: else a key with a space or a comma in it would stop the archive.
        writer = writer.option("delta.columnMapping.mode", "name")
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
            # By their names: a --schema may have its fields in another order than the table.
            marked.option("check-ordering", "false").option("mergeSchema", "true").append()
