"""Runs the examples of a documentation page, as a reader would, and compares what they print.

An example is a block marked `console`: lines that begin with `$ ` are commands (a backslash at the
end continues one), the lines after a command are what it prints, where `...` stands for anything.
All commands of a page run in one new directory, in order. The ports 4150 to 4152 in them are
replaced by free ones. `nsqd` is started in the background, after stopping the one before it, and
its process id is in $NSQD_PID.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"
TIMEOUT_S = 30.0
POLL_S = 0.01
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = re.compile(r"\b415[0-2]\b")


class Step(NamedTuple):
    command: str
    printed: str  # `...` for anything


def steps_of(page: str) -> list[Step]:
    steps: list[Step] = []
    for block in BLOCK.findall((DOCS / page).read_text()):
        joined = block.replace("\\\n", "")
        for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            steps.append(Step(command, printed))
    return steps


class Reader:
    """Somebody who types the commands of a page, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {str(port): str(_free_port()) for port in (4150, 4151, 4152)}
        self._log = directory / "nsqd.stderr"
        self._nsqd: subprocess.Popen[bytes] | None = None
        scripts = str(Path(sys.executable).parent)
        self._environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}

    def follow(self, page: str) -> int:
        """Every step of the page; returns how many there were."""
        steps = steps_of(page)
        try:
            for step in steps:
                self._take(step)
        finally:
            self._stop()
        return len(steps)

    def _take(self, step: Step) -> None:
        command = self._with_free_ports(step.command)
        if command.startswith("nsqd "):
            self._start(command)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        expected = re.escape(self._with_free_ports(step.printed.strip())).replace(r"\.\.\.", ".*")
        told = f"$ {command}\n{done.stdout}{done.stderr}\n{self._log_text()}"
        assert re.fullmatch(expected, done.stdout.strip(), re.DOTALL), told

    def _start(self, command: str) -> None:
        self._stop()
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._nsqd = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._directory,
                env=self._environment,
                stderr=log,
            )
        self._environment["NSQD_PID"] = str(self._nsqd.pid)
        wanted = {"HTTP: listening", *({"HTTPS: listening"} if "--tls-cert" in command else ())}
        deadline = time.monotonic() + TIMEOUT_S
        while not all(each in self._log_text() for each in wanted):
            assert self._nsqd.poll() is None, self._log_text()
            assert time.monotonic() < deadline, self._log_text()
            time.sleep(POLL_S)

    def _stop(self) -> None:
        if self._nsqd is not None and self._nsqd.poll() is None:
            self._nsqd.send_signal(signal.SIGTERM)
            self._nsqd.wait(TIMEOUT_S)

    def _log_text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def _with_free_ports(self, text: str) -> str:
        return PORTS.sub(lambda match: self._ports[match[0]], text)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
