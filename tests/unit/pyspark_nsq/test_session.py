"""A missing or old Java is one sentence that says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_nsq.session import JavaMissing, require_java


def java_home(path: Path, says: str) -> str:
    java = path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return str(path)


def test_an_old_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))
    with pytest.raises(JavaMissing, match=r"Java 17 or newer: install .* says openjdk version"):
        require_java()


def test_a_new_java_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, 'openjdk version "21" 2023-09-19'))
    require_java()


def test_no_java_is_told_in_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "pyspark_nsq.session"],
        env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 1
    assert asked.stderr.startswith("Spark needs Java 17 or newer: install")
    assert asked.stderr.count("\n") == 1
