"""The directory of a table or a checkpoint, as Hadoop's file systems have it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.pipelines.table.storage import Storage


def test_a_relative_path_is_below_the_working_directory_of_the_program(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java was started in another one."""
    monkeypatch.chdir(tmp_path)
    storage = Storage(spark, "lake/orders")
    assert storage.root == f"file:{tmp_path}/lake/orders"
    storage.write_text("note", "x")
    assert (tmp_path / "lake" / "orders" / "note").read_text() == "x"


def test_other_paths_are_as_they_were_given(spark: SparkSession, tmp_path: Path) -> None:
    for given in (str(tmp_path / "c"), f"file:{tmp_path}/c", f"file://{tmp_path}/c"):
        assert Storage(spark, given).root == f"file:{tmp_path}/c"
