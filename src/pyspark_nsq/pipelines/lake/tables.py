"""Opens lake tables by format and name. Their libraries are imported only when one is used."""

from argparse import ArgumentParser, _ArgumentGroup
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from pyspark_nsq.pipelines.lake.formats import DELTA, ICEBERG, require
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES
from pyspark_nsq.pipelines.table.storage import Storage

if TYPE_CHECKING:  # their libraries may not be installed
    from pyspark_nsq.pipelines.lake.delta import DeltaLakeTable
    from pyspark_nsq.pipelines.lake.iceberg import IcebergLakeTable

_DELTA_LOG = "_delta_log"
_CATALOG_FILE = "_catalog.db"


def add_catalog(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add the flag that says in which Iceberg catalog tables are."""
    parser.add_argument(
        "--catalog",
        metavar="NAME",
        help="of pyiceberg's, for Iceberg tables named like db.orders (default: a directory with a "
        "catalog of its own)",
    )


def format_of(spark: SparkSession, path: str, catalog: str | None) -> str | None:
    """DELTA or ICEBERG; None if the table is neither."""
    if catalog:
        return ICEBERG
    storage = Storage(spark, path)
    if storage.exists(_DELTA_LOG):
        return DELTA
    return ICEBERG if storage.exists(_CATALOG_FILE) else None


def delta_table(
    spark: SparkSession, path: str, *, file_bytes: int = FILE_BYTES
) -> "DeltaLakeTable":
    require(DELTA)
    from pyspark_nsq.pipelines.lake.delta import DeltaLakeTable

    return DeltaLakeTable(spark, path, file_bytes)


def iceberg_table(
    spark: SparkSession, name: str, catalog: str | None, *, file_bytes: int = FILE_BYTES
) -> "IcebergLakeTable":
    require(ICEBERG)
    from pyspark_nsq.pipelines.lake import catalogs
    from pyspark_nsq.pipelines.lake.iceberg import IcebergLakeTable

    if catalog:
        return IcebergLakeTable(spark, *catalogs.named(catalog, name), None, file_bytes)
    return IcebergLakeTable(spark, *catalogs.own(spark, name), name, file_bytes)
