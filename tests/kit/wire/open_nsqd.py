"""An nsqd that other machines could reach, by HTTP."""

import re
from pathlib import Path

from tests.kit.daemons import Nsqd, wait_until


class OpenNsqd(Nsqd):
    """Listens for HTTP on all addresses of this machine; the later of two addresses counts."""

    def __init__(self, data_path: Path, *flags: str) -> None:
        super().__init__(data_path, ["--http-address=0.0.0.0:0", *flags])

    def listening_port(self, service: str) -> int:
        if service != "HTTP":
            return super().listening_port(service)
        line = re.compile(r"HTTP: listening on 0\.0\.0\.0:(\d+)")
        return int(wait_until(lambda: line.search(self.log_text()))[1])
