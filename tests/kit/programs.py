"""The programs of a documentation page, and how they are run against an nsqd of a test."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from pumpline.testing import LocalNsqd

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
OTHERS = re.compile(r"^```py\n(.*?)^```", re.M | re.S)  # for other libraries: not run


def programs(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def other_programs(page: str) -> list[str]:
    return OTHERS.findall((ROOT / "docs" / page).read_text())


def with_ports(program: str, nsqd: LocalNsqd) -> str:
    return program.replace("127.0.0.1:4150", nsqd.tcp_address).replace(
        "127.0.0.1:4151", nsqd.http_address
    )


def namespace_of(program: str, nsqd: LocalNsqd) -> SimpleNamespace:
    """Run it here, as a module that is imported; what it defines."""
    defined: dict[str, object] = {"__name__": "page"}
    exec(compile(with_ports(program, nsqd), "a program of the docs", "exec"), defined)
    return SimpleNamespace(**defined)


@contextmanager
def running(*words: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python that runs until it is told to end."""
    with subprocess.Popen(
        [sys.executable, "-u", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> str:
    """What it has printed, when it has ended after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    return printed


def run(*words: str, cwd: Path | None = None) -> str:
    """What a program prints that ends by itself."""
    with running(*words, cwd=cwd) as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    return printed
