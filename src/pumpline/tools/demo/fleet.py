"""The demo's daemons: two nsqds and an nsqlookupd, each a process of its own on loopback.

Ports are whatever is free; a daemon that comes back listens where it was.
"""

import json
import re
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

from pumpline.client.http_connection import ask_once

START_S_MAX = 30.0
HTTP_S_MAX = 10.0
ANSWER_BYTES_MAX = 16 << 20
POLL_S = 0.05


class DaemonProcess:
    """nsqd or nsqlookupd as a child process."""

    def __init__(self, program: str, log: Path, *flags: str) -> None:
        self.tcp_address = "127.0.0.1:0"
        self.http_address = "127.0.0.1:0"
        self._program = program
        self._log = log
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", f"pumpline.tools.{self._program}", *self._flags]
        command += [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.tcp_address = self._listening("TCP")
        self.http_address = self._listening("HTTP")

    def kill(self) -> None:
        """SIGKILL: no chance to write anything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def ask(self, path: str, *, method: str = "GET") -> dict[str, object]:
        url = f"http://{self.http_address}{path}"
        status, body = ask_once(method, url, timeout_s=HTTP_S_MAX, bytes_max=ANSWER_BYTES_MAX)
        if status != HTTPStatus.OK:
            raise OSError(f"{url}: {status} {body.decode(errors='replace')}")
        answer = json.loads(body) if body else {}
        return answer if isinstance(answer, dict) else {}

    def _listening(self, kind: str) -> str:
        assert self._process is not None
        pattern = re.compile(rf"(?<!\w){kind}: listening on (127\.0\.0\.1:\d+)\n")
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s:
            text = self._log.read_text(errors="replace")
            if (found := pattern.search(text)) is not None:
                return found[1]
            if self._process.poll() is not None:
                break
            time.sleep(POLL_S)
        raise OSError(f"{self._program} did not start:\n{text}")


class Fleet:
    """A context manager that starts all of them, and stops what is left."""

    def __init__(self, directory: Path) -> None:
        self.lookupd = DaemonProcess("nsqlookupd", directory / "nsqlookupd.log")
        self.nsqds: list[DaemonProcess] = []
        self._directory = directory

    def __enter__(self) -> Self:
        try:
            self.lookupd.start()
            for name in ("nsqd-1", "nsqd-2"):
                (self._directory / name).mkdir()
                nsqd = DaemonProcess(
                    "nsqd",
                    self._directory / f"{name}.log",
                    f"--data-path={self._directory / name}",
                    f"--lookupd-tcp-address={self.lookupd.tcp_address}",
                    "--broadcast-address=127.0.0.1",
                )
                nsqd.start()
                self.nsqds.append(nsqd)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def messages(self, topic: str) -> int:
        """How many are in the logs of all nsqds."""
        ends = [nsqd.ask(f"/log/offsets?topic={topic}")["end"] for nsqd in self.nsqds]
        return sum(end for end in ends if isinstance(end, int))

    def _stop(self) -> None:
        for daemon in (*self.nsqds, self.lookupd):
            daemon.stop()
