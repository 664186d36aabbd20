"""One nsqd process under test: started from a command, watched through /proc, killed at the end.

Knows the flags that every nsqd takes, a few HTTP calls, and where Linux shows a process's CPU time
and memory. Must not know which implementation it runs, nor what is measured.

The command must be the server itself, not a wrapper that starts it, because CPU time and memory are
read for that one process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_TIMEOUT_S = 20.0
HTTP_TIMEOUT_S = 30.0
POLL_S = 0.02
TOUCH_BYTES = 1 << 20
LOG_TAIL_CHARS = 200
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
METADATA_FILE = "nsqd.dat"
ACCESS_TOKEN = "an-access-token-for-benchmarks"  # who does not ask for one ignores it

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class BenchFailure(Exception):
    """A run that must not be counted: the server died, a client got an error, no data moved."""


@dataclass(frozen=True)
class Command:
    """A server to compare: its name in the table, its command line, its environment."""

    name: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = False  # another program than ours, without our flags

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME=[VAR=VALUE ...] program flags...`, split as a shell would."""
        name, equals, line = text.partition("=")
        words = shlex.split(line)
        env: dict[str, str] = {}
        while words and _ASSIGNMENT.match(words[0]):
            key, _, value = words.pop(0).partition("=")
            env[key] = value
        if not (name and equals and words):
            raise ValueError(f"{text!r}: expected NAME=COMMAND")
        return cls(name, tuple(words), env)


class Server:
    """A running nsqd with a data path of its own; use as a context manager."""

    def __init__(
        self,
        command: Command,
        *,
        data_root: Path | None = None,
        seed: Callable[[Path], None] | None = None,
        flags: Callable[[Path], Sequence[str]] | None = None,
    ) -> None:
        """`seed` fills the data path; `flags` returns more flags and may create files for them."""
        self.command = command
        self.tcp_port = _free_port()
        self.http_port = _free_port()
        self._root = Path(tempfile.mkdtemp(prefix=f"bench-{command.name}-", dir=data_root))
        self._data_path = self._root / "data"
        self._data_path.mkdir()
        self._log_path = self._root / "server.log"
        if seed:
            seed(self._data_path)
        self._flags = flags(self._root) if flags else ()
        self._process: subprocess.Popen[bytes] | None = None
        self._http: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        words = [*self.command.words, *self.flags()]
        env = {**os.environ, **self.command.env}
        with self._log_path.open("wb") as log:
            try:
                # A new session, so that close() can also kill the server's children.
                self._process = subprocess.Popen(
                    words, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
                )
            except OSError as error:
                raise BenchFailure(f"cannot start {self.command.name}: {error}") from error
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check_alive()
            try:
                self.get("/ping")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise BenchFailure(
                        f"no /ping in {START_TIMEOUT_S:.0f} s: {self._log_tail()}"
                    ) from None
                time.sleep(POLL_S)

    def flags(self) -> list[str]:
        """The flags that every server of this kind gets."""
        return [*self.listen_flags(), f"--data-path={self._data_path}", *self._flags]

    def listen_flags(self) -> list[str]:
        return [
            f"--tcp-address=127.0.0.1:{self.tcp_port}",
            f"--http-address=127.0.0.1:{self.http_port}",
        ]

    def close(self) -> None:
        """Kills the server: its data is thrown away, so a clean exit would only take time."""
        if self._http:
            self._http.close()
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    def restart(self) -> float:
        """Kill the server and start it again on the same data; returns the seconds until it
        answers."""
        if self._http:
            self._http.close()
            self._http = None
        assert self._process
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        began_s = time.monotonic()
        self._start()
        return time.monotonic() - began_s

    def touch_memory(self, size_bytes: int) -> None:
        """Have the machine's host back this much of its free memory, for the page cache or for a
        heap: memory that it has to get first costs a broker as much as all else it does."""
        piece = bytes(TOUCH_BYTES)
        path = self._root / "touched"
        with path.open("wb", buffering=0) as file:
            for _ in range(-(-size_bytes // TOUCH_BYTES)):
                file.write(piece)
        path.unlink()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def check_alive(self) -> None:
        """Raises when the process has ended."""
        assert self._process
        status = self._process.poll()
        if status is not None:
            raise BenchFailure(f"server ended with status {status}: {self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:LOG_TAIL_CHARS] if said else "(nothing in its log)"

    def get(self, path: str) -> bytes:
        """GET over a connection that stays open; any status but 200 is a failure."""
        was_open = self._http is not None
        try:
            return self._request("GET", path)
        except ConnectionError:  # the server closes connections that were idle for long
            if not was_open:
                raise
            return self._request("GET", path)

    def post(self, path: str) -> bytes:
        """POST with an empty body."""
        return self._request("POST", path)

    def _request(self, method: str, path: str) -> bytes:
        if not self._http:
            self._http = http.client.HTTPConnection(
                "127.0.0.1", self.http_port, timeout=HTTP_TIMEOUT_S
            )
        try:
            headers = {"Authorization": f"Bearer {ACCESS_TOKEN}"}
            self._http.request(method, path, headers=headers)
            response = self._http.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            self._http = None
            if isinstance(error, OSError):
                raise
            raise BenchFailure(f"{method} {path}: {error!r}") from error
        if response.status != http.client.OK:
            raise BenchFailure(f"{method} {path}: {response.status} {body[:200]!r}")
        return body

    def create(self, topic: str, *channels: str) -> None:
        """Creates a topic and its channels, so that they exist before the first message."""
        self.post(f"/topic/create?topic={topic}")
        for channel in channels:
            self.post(f"/channel/create?topic={topic}&channel={channel}")

    def stats(self, query: str = "") -> dict[str, Any]:
        """/stats as JSON; `query` narrows it, as in `topic=t`."""
        parsed: dict[str, Any] = json.loads(self.get(f"/stats?format=json&{query}"))
        return parsed

    def stored(self, topic: str | None = None) -> int:
        """Messages the server says it has taken in, in one topic or in all."""
        topics = self.stats(f"topic={topic}" if topic else "")["topics"]
        return sum(int(entry["message_count"]) for entry in topics)

    def channel_depth(self, topic: str, channel: str) -> int:
        """Messages of a channel that have not been sent out yet."""
        for found in self.stats(f"topic={topic}")["topics"]:
            for entry in found["channels"]:
                if entry["channel_name"] == channel:
                    return int(entry["depth"])
        raise BenchFailure(f"no channel {topic}/{channel} in /stats")

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        return cpu_s(self.pid)

    def rss_mb(self) -> float:
        """Resident memory now."""
        return self._status_mb("VmRSS")

    def rss_peak_mb(self) -> float:
        """Peak resident memory."""
        return self._status_mb("VmHWM")

    def _status_mb(self, key: str) -> float:
        self.check_alive()
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
        raise BenchFailure(f"no {key} for pid {self.pid}")


def cpu_s(pid: int) -> float:
    """utime + stime of a process in seconds, to the clock tick (10 ms); 0.0 after its end."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # The process name, in brackets, may contain spaces: count the fields after it.
    fields = line.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_busy_s() -> float:
    """CPU time of all cores, of every process, since the machine was started."""
    user, nice, system, _idle, _iowait, *rest = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / TICKS_PER_S


def machine() -> dict[str, Any]:
    """The facts a reader needs to judge a figure: processor, cores, kernel, Python."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def git_commit() -> str | None:
    """The measured commit, with -dirty if the tree differs from it; None outside a repository."""
    here = Path(__file__).parents[1]
    try:
        return (
            subprocess.run(
                ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                cwd=here,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
