"""docs/client.md and the examples: every program in them runs, against an nsqd of ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SAYS = {
    "publish.py": "11000 messages published",
    "failover.py": "order 2: published",
    "blocking.py": "9 words",
}


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def run(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_something_to_run() -> None:
    assert len(blocks("client.md")) == 11


@pytest.mark.parametrize("number", range(10))
def test_programs_on_the_page(number: int) -> None:
    with LocalNsqd() as nsqd:
        program = blocks("client.md")[number].replace("127.0.0.1:4150", nsqd.tcp_address)
        exec(compile(program, f"docs/client.md, program {number}", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str) -> None:
    with LocalNsqd() as nsqd:
        assert SAYS[name] in run([str(ROOT / "examples" / name), nsqd.tcp_address])


def test_example_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    words = ["-m", "pytest", "-q", "-p", "pumpline.pytest_plugin", "-p", "no:cacheprovider"]
    words += ["-c", os.devnull, "--rootdir", str(ROOT / "examples")]
    assert "3 passed" in run([*words, str(ROOT / "examples" / "test_orders.py")])
