"""Maintains a Delta or Iceberg table by hand: small files are merged, old files deleted.

An archive does this itself, every tenth batch and for a few partitions at a time. Use this when the
archive does not run, or when a table has to be small at once. A Parquet table needs it never.
"""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import nullcontext

from pyspark.sql import SparkSession
from rich.console import Console

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.lake.formats import DELTA
from pyspark_nsq.pipelines.lake.tables import add_catalog, delta_table, format_of, iceberg_table
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.table.compaction import FILE_BYTES
from pyspark_nsq.pipelines.table.sole_writer import sole_writer
from pyspark_nsq.pipelines.table.storage import Storage

EXAMPLES = """
  pumpline pipeline maintain --table tables/orders
  pumpline pipeline maintain --table tables/orders --keep-hours 24
"""

_HOURS = re.compile(r"[0-9]{1,6}", re.ASCII)


def hours(text: str) -> int:
    if not _HOURS.fullmatch(text):
        raise ArgumentTypeError(f"'{text}' is not a number of hours")
    return int(text)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--table", required=True, help="of an archive")
    add_catalog(parser)
    parser.add_argument(
        "--keep-hours",
        metavar="N",
        type=hours,
        help="keep what was replaced in the last N hours, for readers and for travel in time "
        "(default: as the archive does, 168 in Delta, 24 in Iceberg)",
    )
    parser.add_argument(
        "--file-bytes",
        metavar="N",
        type=int,
        default=FILE_BYTES,
        help="smaller files are put together (default: %(default)s)",
    )
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    spark = command.session(arguments, "maintain")
    kind = format_of(spark, arguments.table, arguments.catalog)
    if kind is None:
        raise BadOption(f"{arguments.table} is neither a Delta nor an Iceberg table")
    storage = None if arguments.catalog else Storage(spark, arguments.table)
    with nullcontext() if storage is None else sole_writer(storage):
        replaced, deleted = _maintained(spark, kind, arguments)
    console.print(f"maintain: {replaced:,} small files put together, {deleted:,} files deleted")
    return command.EXIT_OK


def _maintained(spark: SparkSession, kind: str, arguments: Namespace) -> tuple[int, int]:
    size, keep = arguments.file_bytes, arguments.keep_hours
    if kind == DELTA:
        delta = delta_table(spark, arguments.table, file_bytes=size)
        delta.keep_hours = delta.keep_hours if keep is None else keep
        return delta.maintain(now=True)
    iceberg = iceberg_table(spark, arguments.table, arguments.catalog, file_bytes=size)
    iceberg.keep_s = iceberg.keep_s if keep is None else keep * 3600.0
    return iceberg.maintain()


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
