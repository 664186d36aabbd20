"""Runs NSQ's tools as processes, as a shell does.

A test names the tool by NSQ's name. PUMPLINE_TEST_TOOLS names a directory with other programs of
these names, to check the tests themselves; leave out `-m deviation` then.
"""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest
from _pytest.mark import ParameterSet

from tests.kit.daemons import wait_until

TOOLS_VARIABLE = "PUMPLINE_TEST_TOOLS"
TIMEOUT_S = 60.0


def command_of(tool: str) -> list[str]:
    if directory := os.environ.get(TOOLS_VARIABLE):
        return [str(Path(directory) / tool)]
    module = f"pumpline.tools.{tool}"
    if find_spec(f"{module}.command"):
        module += ".command"
    return [sys.executable, "-m", module]


def run_tool(
    tool: str, *flags: str, input: bytes = b"", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """A tool that ends by itself."""
    return subprocess.run(
        [*command_of(tool), *flags],
        input=input,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


class RunningTool:
    """A tool that runs until it is told to stop; a context manager that sees to its end."""

    def __init__(self, tool: str, *flags: str, directory: Path) -> None:
        self._command = [*command_of(tool), *flags]
        self._stdout = directory / f"{tool}.stdout"
        self._stderr = directory / f"{tool}.stderr"
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def start(self) -> Self:
        with self._stdout.open("ab") as stdout, self._stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
        return self

    @property
    def stdout(self) -> bytes:
        return self._stdout.read_bytes()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def wait_for(self, text: str) -> None:
        """Until its log says this."""
        wait_until(lambda: text in self.stderr or self._has_ended())

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def _has_ended(self) -> bool:
        code = self.process.poll()
        assert code is None, f"ended with {code}: {self.stderr}"
        return False


def without_time(line: str) -> str:
    """A log line of Go's tools without its date and time."""
    return line.split(" ", 2)[2] if line[:4].isdigit() else line


def last_line(text: bytes) -> str:
    return without_time(text.decode().rstrip("\n").rpartition("\n")[2])


def ours(*row: object) -> ParameterSet:
    """A row of a table that NSQ's tool would not pass."""
    return pytest.param(*row, marks=pytest.mark.deviation)
