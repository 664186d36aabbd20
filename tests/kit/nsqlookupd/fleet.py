"""Real nsqds and nsqlookupds that find each other, and stand-ins for one that misbehaves."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kit.daemons import IO_TIMEOUT_S, Nsqd, Nsqlookupd

PING_INTERVAL_S = 0.5
NSQD_FLAGS = (
    "--broadcast-address=127.0.0.1",
    f"--lookupd-ping-interval={PING_INTERVAL_S}s",
    "--http-client-request-timeout=5s",
)


def new_nsqd(path: Path, *lookupd_addresses: str, flags: Sequence[str] = ()) -> Nsqd:
    told = [f"--lookupd-tcp-address={address}" for address in lookupd_addresses]
    return Nsqd(path, [*NSQD_FLAGS, *told, *flags])


def new_nsqlookupd(path: Path, flags: Sequence[str] = ()) -> Nsqlookupd:
    return Nsqlookupd(path, ["--broadcast-address=127.0.0.1", *flags])


def get(daemon: Nsqd | Nsqlookupd, path: str) -> Any:
    status, body = daemon.http("GET", path)
    assert status in (200, 404), (path, status, body)
    return json.loads(body)


def post(daemon: Nsqd | Nsqlookupd, path: str, body: bytes = b"") -> None:
    status, answer = daemon.http("POST", path, body)
    assert status == 200, (path, status, answer)


def registrations(nsqlookupd: Nsqlookupd) -> dict[str, set[int]]:
    """The keys of /debug, without that of the nodes, and the TCP ports of who has them."""
    return {
        key: {node["tcp_port"] for node in nodes}
        for key, nodes in get(nsqlookupd, "/debug").items()
        if key != "client::"
    }


def channels_of(nsqd: Nsqd, topic: str) -> set[str]:
    return {
        channel["channel_name"]
        for found in nsqd.stats(topic)["topics"] or ()
        for channel in found["channels"]
    }


class Impostor:
    """Listens where an nsqlookupd might, and does with each connection what the test says."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.connection_count = 0
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            each.close()
        self._thread.join(IO_TIMEOUT_S)

    def wait_for_connections(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.connection_count >= count, IO_TIMEOUT_S)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.settimeout(IO_TIMEOUT_S)
            self._sockets.append(accepted)
            with self.changed:
                self.connection_count += 1
                self.changed.notify_all()
            threading.Thread(target=self._run, args=(accepted,), daemon=True).start()

    def _run(self, accepted: socket.socket) -> None:
        try:
            self._serve(accepted)
        except BaseException as error:
            self.errors.append(error)
