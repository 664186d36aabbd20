"""Drives one unchanged NSQ client library that runs in a process of its own.

Speaks the line protocol of clients/control.py. A process per library keeps gevent's patches out of
the test process and gives every wait a deadline. Knows where each driver lies and what it takes to
run it; must not know the library's API, nor what a test wants to prove.
"""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parents[2] / "interop"
PYTHON_CLIENTS = ("pynsq", "ansq", "gnsq")
CLIENTS = (*PYTHON_CLIENTS, "nsqjs", "go-nsq")
# ansq has no compression; pynsq's drops the connection under tornado 6 (nsqio/pynsq issue 258).
DEFLATE_CLIENTS = ("gnsq", "nsqjs", "go-nsq")
GO_DRIVER = HERE / "go" / "driver"  # `make interop-go` builds it

# Generous: a Go nsqd notices timeouts and delays on a young channel up to 5 s late.
EVENT_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0
STDERR_TAIL_CHARS = 2000


class Delivery(NamedTuple):
    consumer: str
    id: str
    attempts: int
    body: bytes


def missing_requirement(name: str) -> str | None:
    """Why a client cannot run here, or None if it can."""
    if name in PYTHON_CLIENTS:
        return None
    if name == "go-nsq":
        return (
            None if GO_DRIVER.is_file() else "go-nsq needs Go: install it, then `make interop-go`"
        )
    if shutil.which("node") is None:
        return "nsqjs needs node"
    if not (HERE / "js" / "node_modules" / "nsqjs").is_dir():
        return "nsqjs is not installed: run `npm ci --omit=optional` in tests/interop/js"
    return None


class ClientProcess:
    """One library: any number of consumers, and one producer that connects at first use."""

    def __init__(
        self,
        name: str,
        tcp_address: str,
        stderr_path: Path,
        wrapping: Mapping[str, object] | None = None,
    ) -> None:
        if name in PYTHON_CLIENTS:
            command = [sys.executable, str(HERE / "clients" / f"{name}_driver.py")]
        elif name == "go-nsq":
            command = [str(GO_DRIVER)]
        else:
            command = ["node", str(HERE / "js" / f"{name}_driver.js")]
        self.deliveries: list[Delivery] = []
        self.errors: list[str] = []
        self._stderr_path = stderr_path
        with stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, tcp_address, json.dumps(wrapping or {})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read_lines, daemon=True)
        self._reading.start()

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """One PUB for each body; returns when nsqd has answered all."""
        self._call("publish", topic=topic, bodies=[_encoded(body) for body in bodies])

    def multi_publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        self._call("multi_publish", topic=topic, bodies=[_encoded(body) for body in bodies])

    def deferred_publish(self, topic: str, body: bytes, defer_ms: int) -> None:
        self._call("deferred_publish", topic=topic, body=_encoded(body), defer_ms=defer_ms)

    def consume(
        self,
        consumer: str,
        topic: str,
        channel: str,
        *,
        auto_finish: bool,
        max_in_flight: int = 1,
        msg_timeout_ms: int = 60_000,
        heartbeat_interval_s: int = 30,
        deflate: bool = False,
        lookupd_http_addresses: Sequence[str] = (),
    ) -> None:
        subscription = {
            "topic": topic,
            "channel": channel,
            "max_in_flight": max_in_flight,
            "auto_finish": auto_finish,
            "msg_timeout_ms": msg_timeout_ms,
            "heartbeat_interval_s": heartbeat_interval_s,
            "deflate": deflate,
            "lookupd_http_addresses": list(lookupd_http_addresses),
        }
        self._call("consume", consumer=consumer, subscription=subscription)

    def finish(self, delivery: Delivery) -> None:
        self._call("finish", consumer=delivery.consumer, message_id=delivery.id)

    def requeue(self, delivery: Delivery, *, delay_ms: int) -> None:
        self._call("requeue", consumer=delivery.consumer, message_id=delivery.id, delay_ms=delay_ms)

    def touch(self, delivery: Delivery) -> None:
        self._call("touch", consumer=delivery.consumer, message_id=delivery.id)

    def close(self, consumer: str) -> None:
        self._call("close", consumer=consumer)

    def wait_for_deliveries(self, count: int) -> list[Delivery]:
        """All deliveries so far, once there are at least so many."""
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while len(self.deliveries) < count:
            self._take_event(deadline)
        return self.deliveries

    def wait_for_bodies(self, bodies: Collection[bytes], timeout_s: float) -> None:
        """Returns when each of them was delivered, whatever else was."""
        missing = set(bodies) - {delivery.body for delivery in self.deliveries}
        deadline = time.monotonic() + timeout_s
        while missing:
            seen = len(self.deliveries)
            try:
                self._take_event(deadline)
            except TimeoutError as error:
                error.add_note(f"{len(missing)} missing, such as {min(missing)!r}")
                raise
            missing.difference_update(delivery.body for delivery in self.deliveries[seen:])

    def wait_for_error(self) -> str:
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while not self.errors:
            self._take_event(deadline)
        return self.errors[0]

    def take_events_for(self, duration_s: float) -> None:
        """Gathers what comes; returns early at the first event."""
        with contextlib.suppress(TimeoutError):
            self._take_event(time.monotonic() + duration_s)

    def leave(self) -> int:
        """Ends the input, on which a driver leaves, and returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the client did not leave\n{self._stderr_tail()}") from None

    def kill(self) -> None:
        """Ends the process whatever it does, and frees its pipes."""
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _call(self, operation: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + EVENT_TIMEOUT_S
        while self._take_event(deadline) != "done":
            pass

    def _take_event(self, deadline: float) -> str:
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            raise TimeoutError(f"the client is silent\n{self._stderr_tail()}") from None
        assert line, f"the client died\n{self._stderr_tail()}"
        event = json.loads(line)
        kind: str = event["event"]
        if kind == "message":
            body = base64.b64decode(event["body"])
            delivery = Delivery(event["consumer"], event["id"], event["attempts"], body)
            self.deliveries.append(delivery)
        elif kind == "error":
            self.errors.append(event["text"])
        elif kind == "failed":
            raise AssertionError(event["reason"])
        return kind

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _stderr_tail(self) -> str:
        return self._stderr_path.read_text(errors="replace")[-STDERR_TAIL_CHARS:]


def _encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()
