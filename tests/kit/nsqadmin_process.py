"""nsqadmin as a process."""

import re
import subprocess
from pathlib import Path
from typing import Self

from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.process import QUICK_COMMAND
from tests.kit.ports import HeldPort

LISTENING = re.compile(r"HTTP: listening on 127\.0\.0\.1:\d+")
STOP_S = 30


class NsqadminProcess:
    """A context manager that starts and stops it."""

    def __init__(self, log_path: Path, *flags: str) -> None:
        self._log_path = log_path
        self._port = HeldPort()
        self._flags = flags

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self._port.number}"

    def __enter__(self) -> Self:
        command = QUICK_COMMAND
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, f"--http-address={self.http_address}", *self._flags],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        wait_until(self._is_listening)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(STOP_S)

    def _is_listening(self) -> bool:
        assert self._process.poll() is None, self._log_path.read_text()
        return LISTENING.search(self._log_path.read_text()) is not None
