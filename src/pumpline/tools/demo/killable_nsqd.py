"""An nsqd for the demo that can be killed: pumpline.testing's LocalNsqd, in a process of its own.

The child starts the nsqd, sends its ports through a pipe, and ends when the pipe is closed: by
`stop`, or because the demo itself has ended. Started again, it listens on the same ports.
"""

import logging
import multiprocessing
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from pumpline.testing import LocalNsqd

START_S_MAX = 30.0
STOP_S_MAX = 10.0

# A fork would take the demo's threads along: its event loop, and the link to Spark.
_PROCESSES = multiprocessing.get_context("spawn")


class KillableNsqd(LocalNsqd):
    """A LocalNsqd whose server is in a child process; everything else of it works over HTTP."""

    def __init__(self, *given_flags: str, data_path: Path) -> None:
        super().__init__(*given_flags, data_path=data_path)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Pipe | None = None

    def start(self) -> None:
        self._pipe, theirs = _PROCESSES.Pipe()
        ports = (self.tcp_port, self.http_port)
        self._process = _PROCESSES.Process(
            target=_serve, args=(theirs, self.flags, self.data_path, ports), daemon=True
        )
        self._process.start()
        theirs.close()
        with suppress(EOFError):
            if self._pipe.poll(START_S_MAX):
                self.tcp_port, self.http_port = self._pipe.recv()
                return
        raise OSError(f"an nsqd with its data in {self.data_path} did not start")

    def kill(self) -> None:
        """SIGKILL: the nsqd cannot write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._pipe.close()
            self._process.join(STOP_S_MAX)
            self.kill()


def _serve(pipe: Pipe, flags: Sequence[str], data_path: Path, ports: tuple[int, int]) -> None:
    """What the child does."""
    logging.disable()  # its log lines would stand between those of the demo
    nsqd = LocalNsqd(*flags, data_path=data_path)
    nsqd.tcp_port, nsqd.http_port = ports
    with nsqd, suppress(EOFError, KeyboardInterrupt):
        pipe.send((nsqd.tcp_port, nsqd.http_port))
        pipe.recv()
