"""What docs/spark.md, the class's docstring and the example say is what happens."""

import doctest
import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq import DefaultSource
from pyspark_nsq.options import READ_NAMES, WRITE_NAMES
from tests.kit.daemons import Nsqd
from tests.kit.spark.topics import publish

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"
ADDRESS = "127.0.0.1:4151"  # in texts; a test puts its own node there
ORDER = b'{"order":1,"total":20}'


def test_the_docstring_has_every_option_and_no_other() -> None:
    rows = re.findall(r"^ *\| (`.+?) \|", DefaultSource.__doc__ or "", re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {*READ_NAMES, *WRITE_NAMES}


@pytest.mark.slow
def test_the_example_in_the_docstring_prints_what_it_says(spark: SparkSession, nsqd: Nsqd) -> None:
    topic = "docstring-orders"
    publish(nsqd, topic, [ORDER])
    text = inspect.cleandoc(DefaultSource.__doc__ or "")
    text = text.replace(ADDRESS, nsqd.http_address).replace('"orders"', f'"{topic}"')
    test = doctest.DocTestParser().get_doctest(text, {"spark": spark}, "DefaultSource", None, 0)
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.tries == 2 and not runner.failures


@pytest.mark.e2e
def test_the_examples_of_the_page_run(
    spark: SparkSession, nsqd: Nsqd, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "page-orders"
    publish(nsqd, topic, [ORDER, ORDER])
    text = PAGE.read_text().replace(ADDRESS, nsqd.http_address).replace("/tmp/orders", str(work))
    text = text.replace('"orders"', f'"{topic}"').replace(
        "subscribe 'orders'", f"subscribe '{topic}'"
    )
    blocks = re.findall(r"^```python\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, Any] = {"spark": spark}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert ORDER.decode() in printed
    assert "0 rows to read" in printed
    assert spark.read.parquet(str(work / "table")).count() == 2


@pytest.mark.e2e
def test_the_example_runs_from_end_to_end(
    spark: SparkSession,
    nsqd: Nsqd,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NSQD", nsqd.http_address)
    names = runpy.run_path(str(ROOT / "examples" / "spark_orders.py"))
    assert names["archived"].count() == 1000
    assert names["totals"].count() == 7
    assert names["dear_count"] == sum(10 + number % 90 >= 90 for number in range(1000))
    assert "batch 0: 400 rows, lag 600" in capsys.readouterr().out
