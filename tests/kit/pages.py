"""Runs the examples of a documentation page, as a reader would, and compares what they print.

An example is a block marked `console`: lines that begin with `$ ` are commands (a backslash at the
end continues one), the lines after a command are what it prints, where `...` stands for anything.
All commands of a page run in one new directory, in order. The ports in them (4150 and its like) are
replaced by free ones. `nsqd` is started in the background, after stopping the one before it, and
its process id is in $NSQD_PID; a daemon whose command ends in `&` runs beside the others to the end
of the page. A `curl` that only looks is repeated for a while until it shows what it should.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit.ports import HeldPort

DOCS = Path(__file__).resolve().parents[2] / "docs"
TIMEOUT_S = 60.0
POLL_S = 0.01
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = re.compile(r"\b4(?:15[0-2]|16[01]|17[01]|25[01])\b")
DAEMONS = ("nsqd ", "nsqlookupd ")
CHANGES = re.compile(r"\s-(?:d|X)\b|\s--(?:data|request)")


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

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """The ports in the environment are replaced, too."""
        self._directory = directory
        self._ports: dict[str, HeldPort] = {}
        self._log = directory / "nsqd.stderr"
        self._nsqd: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        scripts = str(Path(sys.executable).parent)
        self._environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
        for name, value in (environment or {}).items():
            self._environment[name] = self._with_free_ports(value)

    def follow(self, page: str) -> int:
        """Every step of the page; returns how many there were."""
        steps = steps_of(page)
        try:
            for step in steps:
                self._take(step)
        finally:
            self._stop()
            for daemon in self._others:
                _end(daemon)
        return len(steps)

    def _take(self, step: Step) -> None:
        command = self._with_free_ports(step.command)
        if command.startswith(DAEMONS) and command.endswith("&"):
            log = self._directory / f"daemon-{len(self._others)}.stderr"
            self._others.append(self._spawn(command.removesuffix("&"), log))
            return
        if command.startswith("nsqd "):
            self._start(command)
            return
        expected = re.escape(self._with_free_ports(step.printed.strip())).replace(r"\.\.\.", ".*")
        looks = command.startswith("curl ") and not CHANGES.search(command)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            done = self._run(command)
            if re.fullmatch(expected, done.stdout.strip(), re.DOTALL):
                return
            told = f"$ {command}\n{done.stdout}{done.stderr}\n{self._log_text()}"
            assert looks and time.monotonic() < deadline, told
            time.sleep(POLL_S)

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def _start(self, command: str) -> None:
        self._stop()
        self._nsqd = self._spawn(command, self._log)
        self._environment["NSQD_PID"] = str(self._nsqd.pid)

    def _spawn(self, command: str, log_path: Path) -> subprocess.Popen[bytes]:
        """A daemon that listens."""
        log_path.write_bytes(b"")
        program, _, flags = command.partition(" ")
        with log_path.open("ab") as log:
            daemon = subprocess.Popen(
                ["bash", "-c", f"exec {sys.executable} -m pumpline.tools.{program} {flags}"],
                cwd=self._directory,
                env=self._environment,
                stderr=log,
            )
        wanted = {"HTTP: listening", *({"HTTPS: listening"} if "--tls-cert" in command else ())}
        deadline = time.monotonic() + TIMEOUT_S
        while not all(each in log_path.read_text() for each in wanted):
            assert daemon.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(POLL_S)
        return daemon

    def _stop(self) -> None:
        if self._nsqd is not None:
            _end(self._nsqd)

    def _log_text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def _with_free_ports(self, text: str) -> str:
        return PORTS.sub(self._free_for, text)

    def _free_for(self, match: re.Match[str]) -> str:
        if match[0] not in self._ports:
            self._ports[match[0]] = HeldPort()
        return str(self._ports[match[0]].number)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(TIMEOUT_S)
