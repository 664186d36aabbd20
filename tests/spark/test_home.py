"""The Spark home of local sessions: the installed one, with directories in place of zips."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pyspark_nsq.home import quick_home


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def imported_from(home: str, module: str) -> str:
    """Where a process that Spark starts would find a module."""
    (archive,) = (Path(home) / "python" / "lib").glob(f"{module}*.zip")
    printing = f"import {module}; print({module}.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    command = [sys.executable, "-c", printing]
    return subprocess.check_output(command, env=environment, text=True).strip()


def test_workers_import_from_files_that_are_the_installed_ones() -> None:
    home = quick_home()
    assert home is not None
    for module in ("pyspark", "py4j"):
        found = imported_from(home, module)
        assert found.startswith(home)
        installed = Path(pyspark.__file__).parent.parent / module / "__init__.py"
        assert os.path.samefile(found, installed)
    assert (Path(home) / "bin" / "spark-submit").is_file()
    assert list((Path(home) / "jars").glob("spark-core_*.jar"))


def test_the_home_is_made_once(tmp_path: Path) -> None:
    first = quick_home()
    assert first is not None
    made_ns = os.stat(first).st_ctime_ns
    assert quick_home() == first
    assert os.stat(first).st_ctime_ns == made_ns
    assert [path.name for path in (tmp_path / "cache" / "pumpline").iterdir()] == [Path(first).name]


def test_a_home_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert quick_home() is None


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert quick_home() is None


def test_a_user_without_a_home_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert quick_home() is None
