"""The tests' Spark home: processes that Spark starts import the installed pyspark, not a zip."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kit.spark.home import quick_home


@pytest.mark.parametrize("module", ["pyspark", "py4j"])
def test_workers_import_the_installed_files(module: str) -> None:
    home = Path(quick_home())
    (archive,) = (home / "python" / "lib").glob(f"{module}*.zip")
    found = subprocess.check_output(
        [sys.executable, "-c", f"import {module}; print({module}.__file__)"],
        env={**os.environ, "PYTHONPATH": str(archive)},
        text=True,
    ).strip()
    assert found.startswith(str(home))
    installed = Path(pyspark.__file__).parent.parent / module / "__init__.py"
    assert os.path.samefile(found, installed)


def test_the_home_has_what_starts_spark() -> None:
    home = Path(quick_home())
    assert (home / "bin" / "spark-submit").is_file()
    assert list((home / "jars").glob("spark-core_*.jar"))
