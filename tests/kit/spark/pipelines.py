"""Pipelines for tests: run as a user would, in the session that all tests share."""

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console

from tests.spark.conftest import QUICK

SHOP = '{"order_id": %d, "amount": %d.5, "city": "Oslo"}'


def run(pipeline: ModuleType, *arguments: str) -> str:
    """Runs a pipeline to its end; returns what it printed. Raises what it could not do."""
    parser = ArgumentParser()
    pipeline.arguments(parser)
    quick = [part for name, value in QUICK.items() for part in ("--option", f"{name}={value}")]
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    parsed = parser.parse_args([*arguments, *quick, "--master", "local[2,4]"])
    assert pipeline.run(parsed, console) == 0
    return console.export_text()


def orders(numbers: Iterable[int]) -> list[bytes]:
    return [(SHOP % (number, number)).encode() for number in numbers]


def table(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.option("mergeSchema", "true").parquet(str(path))


def order_ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row[0] for row in table(spark, path).select("event.order_id").collect())


def lines_of(frame: DataFrame) -> list[object]:
    return [row.asDict() for row in frame.collect()]


def plain(value: Any) -> Any:
    """A value of a row as Python's json would have it: objects are dicts."""
    if isinstance(value, Row):
        return {name: plain(inner) for name, inner in value.asDict().items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value
