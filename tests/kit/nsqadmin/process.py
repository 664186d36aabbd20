"""A real nsqadmin process, and what tests ask it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.kit.daemons import IO_TIMEOUT_S, Daemon, wait_until

COMMAND = (sys.executable, "-m", "pumpline.tools.nsqadmin")
QUICK_COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("quick.py")))


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json()["message"])


class Nsqadmin(Daemon):
    program = "nsqadmin"

    def start(self, *, tcp_port: int = 0, http_port: int = 0) -> Self:
        command = [*QUICK_COMMAND, f"--http-address=127.0.0.1:{http_port}", *self.flags]
        with self.log_path.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.http_port = self.listening_port("HTTP")
        return self

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """A GET, or a POST of this JSON; bytes are sent as they are."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=IO_TIMEOUT_S)
        try:
            connection.request(
                method or ("GET" if body is None else "POST"),
                path,
                b"" if body is None else sent,
                dict(headers or {}),
            )
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, told, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """JSON of a success."""
        answer = self.ask(path)
        assert answer.status == 200, (path, answer)
        return answer.json()

    def view(self, path: str) -> Any:
        return self.get(f"/api/v1/{path}")

    def post(self, path: str, body: object) -> Any:
        answer = self.ask(path, body)
        assert answer.status == 200, (path, answer)
        return answer.json()

    def knows(self, *nodes: str) -> None:
        """Wait until a poll has seen these nodes answer."""

        def seen() -> bool:
            rows = self.view("table/nodes")["rows"]
            return {row["node"] for row in rows if row["ok"]} >= set(nodes)

        wait_until(seen)

    def knows_topic(self, topic: str, *, nodes: int = 1) -> None:
        def seen() -> bool:
            rows = self.view(f"table/topics?search={topic}")["rows"]
            return any(row["topic"] == topic and row["nodes"] == nodes for row in rows)

        wait_until(seen)

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Server-sent events: name and data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=IO_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield _events(response)
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := response.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@contextmanager
def running_nsqadmin(path: Path, *flags: str) -> Iterator[Nsqadmin]:
    with Nsqadmin(path, flags) as admin:
        yield admin


def failing_start(*flags: str) -> tuple[int, str]:
    """Exit code and log of an nsqadmin that should not start."""
    done = subprocess.run(
        [*COMMAND, "--http-address=127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        timeout=IO_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stderr


def lookupd_flags(addresses: Sequence[str]) -> list[str]:
    return [f"--lookupd-http-address={address}" for address in addresses]


def nsqd_flags(addresses: Sequence[str]) -> list[str]:
    return [f"--nsqd-http-address={address}" for address in addresses]
