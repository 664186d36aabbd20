"""A table has one writer at a time."""

import os
from pathlib import Path

import pytest

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.table.sole_writer import locked


def test_a_second_writer_is_refused_at_once_and_may_follow_the_first(tmp_path: Path) -> None:
    table = tmp_path / "tables" / "new one"
    refused = rf"being written by another archive \(process {os.getpid()}\)"
    with locked(table), pytest.raises(NsqError, match=refused), locked(table):
        pass
    with locked(table):
        pass


def test_tables_do_not_disturb_each_other(tmp_path: Path) -> None:
    with locked(tmp_path / "a"), locked(tmp_path / "b"):
        pass
