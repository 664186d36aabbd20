"""`pumpline demo`, shortened: the story runs to its end, and the books balance."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TIMEOUT_S = 500


@pytest.mark.slow
@pytest.mark.e2e
def test_the_books_balance_after_a_kill_in_the_middle(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "pumpline.tools.pumpline", "demo", "--seconds=3", "--rate=1000"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for text in ("kill -9 of", "is back", "The quarantine", "not UTF-8", "The books balance"):
        assert text in demo.stdout
    assert demo.stderr == ""
    picture = ElementTree.parse(tmp_path / "pumpline-demo.svg").getroot()
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 3
