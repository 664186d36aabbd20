"""Runs commands with a stdout that takes little, late, or nothing at all.

Knows pipes, terminals and processes; must not import the package under test.
"""

import array
import fcntl
import os
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Self

from tests.kit.daemons import wait_until
from tests.kit.nsq_tools import command_of

TIMEOUT_S = 60.0
PIPE_BYTES = 4096  # the smallest that Linux makes
READ_BYTES = 997  # no divisor of anything
ASLEEP_SAMPLES = 30
MODULES = ("pumpline", "nsqd", "nsqlookupd", "nsqadmin")  # the others are packages


class Ended(NamedTuple):
    code: int
    out: bytes
    err: str


class SmallPipe:
    """A pipe with room for one page. Both ends stay open here, as in the shell that made it."""

    def __init__(self, *, is_blocking: bool = True) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self.writer, is_blocking)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.writer)
        self.close_reader()

    @property
    def waiting_bytes(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self.reader, termios.FIONREAD, count)
        return count[0]

    def close_reader(self) -> None:
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1


def words_of(command: str) -> list[str]:
    """A command line as a user writes it, with the programs of this project."""
    tool, *rest = command.split()
    if tool in MODULES:
        return [sys.executable, "-m", f"pumpline.tools.{tool}", *rest]
    return [*command_of(tool), *rest]


def run_into(command: str, stdout: int | IO[bytes], cwd: Path) -> Ended:
    """Without its output."""
    done = subprocess.run(
        words_of(command),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=cwd,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, b"", done.stderr.decode())


def run_into_file(command: str, cwd: Path) -> Ended:
    path = cwd / "stdout"
    with path.open("wb") as file:
        ended = run_into(command, file, cwd)
    return ended._replace(out=path.read_bytes())


@contextmanager
def running(command: str, stdout: int, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose stderr is a file beside its data, so that no pipe of it fills up."""
    with (cwd / "stderr").open("w+b") as stderr:
        process = subprocess.Popen(
            words_of(command), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=cwd
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def stderr_of(cwd: Path) -> str:
    return (cwd / "stderr").read_text()


def read_slowly(reader: int, process: subprocess.Popen[bytes]) -> bytes:
    """All that it writes until it ends, in small pieces."""
    read = bytearray()
    ended = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while ready := dict(poll.poll(TIMEOUT_S * 1000)):
            if not ready.get(reader, 0) & select.POLLIN:
                return bytes(read)
            read += os.read(reader, READ_BYTES)
        raise AssertionError(f"neither output nor an end, after {len(read)} bytes")
    finally:
        os.close(ended)


def wait_until_asleep(process: subprocess.Popen[bytes]) -> None:
    """Until no thread of it has run for a while: what waits does not poll."""
    seen = 0

    def is_asleep() -> bool:
        nonlocal seen
        tasks = Path(f"/proc/{process.pid}/task").glob("*/stat")
        states = {each.read_text().rpartition(") ")[2][0] for each in tasks}
        seen = seen + 1 if states == {"S"} else 0
        return seen > ASLEEP_SAMPLES or process.poll() is not None

    wait_until(is_asleep)
    assert process.poll() is None, f"ended with {process.returncode}"
