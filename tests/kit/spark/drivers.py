"""Pipelines in processes of their own, to be killed: as a user starts them, on a quick Java."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.kit.daemons import wait_until

START_S_MAX = 900.0  # a machine may have much else to do
# Up in less time: C1 only, and a collector with no threads.
QUICK_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JAVA = f"spark.driver.extraJavaOptions={QUICK_FLAGS}"
QUICK_ENVIRONMENT = {"JDK_JAVA_OPTIONS": QUICK_FLAGS}  # of all there are; each says so on stderr


class Driver:
    """`pumpline pipeline ...`, in a group of its own, so that Java is killed with it."""

    def __init__(self, work: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "pumpline.tools.pumpline", "pipeline", *arguments]
        command += ["--master", "local[2]", "--conf", QUICK_JAVA]
        command += ["--conf", "spark.driver.memory=512m", "--conf", f"spark.local.dir={work}/local"]
        self._log = work / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()

    def wait_for(self, happened: Callable[[], object]) -> None:
        """Until it is so; a driver that ends before has failed."""
        wait_until(lambda: happened() or self._process.poll() is not None, START_S_MAX)
        assert self._process.poll() is None, self._log.read_text()[-3000:]

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
