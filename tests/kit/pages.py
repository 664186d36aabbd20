"""Runs the examples of a documentation page, as a reader would, and compares what they print.

An example is a block marked `console`: lines that begin with `$ ` are commands (a backslash at the
end continues one), the lines after a command are what it prints, where `...` stands for anything.
All commands of a page run in one new directory, in order. The ports in them (4150 and its like) are
replaced by free ones. `nsqd` is started in the background, after stopping the one before it, and
its process id is in $NSQD_PID; a daemon or tool whose command ends in `&` runs beside the others to
the end of the page. A `curl`, `cat` or `nsq_tail --peek`, which only look, are repeated for a while
until they show what they should.
"""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit.ports import HeldPort

DOCS = Path(__file__).resolve().parents[2] / "docs"
TIMEOUT_S = 60.0
POLL_S = 0.01
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = re.compile(r"\b4(?:15[0-2]|16[01]|17[01]|25[01])\b")
DAEMONS = ("nsqd ", "nsqlookupd ", "nsqadmin ")
TOOLS = ("nsq_to_file ", "nsq_to_http ", "nsq_to_nsq ")
LOOKS = re.compile(r"curl |cat |nsq_tail .*--peek")
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
        self._environment = {**os.environ, "PATH": f"{_scripts(directory)}:{os.environ['PATH']}"}
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
        if command.startswith(TOOLS) and command.endswith("&"):
            tool = ["bash", "-c", f"exec {command.removesuffix('&')}"]
            with (self._directory / "tools.stderr").open("ab") as log:
                self._others.append(
                    subprocess.Popen(tool, cwd=self._directory, env=self._environment, stderr=log)
                )
            return
        expected = re.escape(self._with_free_ports(step.printed.strip())).replace(r"\.\.\.", ".*")
        looks = LOOKS.match(command) and not CHANGES.search(command)
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


def _scripts(directory: Path) -> str:
    """Directories for PATH: first one with the commands of this source tree, installed or not."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    ours = directory / ".bin"
    ours.mkdir()
    for name, entry in project["scripts"].items():
        script = ours / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {entry.partition(":")[0]} "$@"\n')
        script.chmod(0o755)
    return f"{ours}:{Path(sys.executable).parent}"


def _end(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(TIMEOUT_S)
