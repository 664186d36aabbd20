"""Runs real nsqd and nsqlookupd processes for a test, and talks to them over blocking sockets.

Knows how to start, stop, kill and restart a daemon, where it listens, and enough of the V2
protocol to drive nsqd frame by frame. Must not import the package under test: the same tests also
run against other daemons, named by PUMPLINE_TEST_NSQD and PUMPLINE_TEST_NSQLOOKUPD, to check the
tests themselves.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

from tests.kit.ports import HeldPort

RUN_MARK = "running"  # the file that says on which boot of the machine nsqd runs
COMMAND_VARIABLE = "PUMPLINE_TEST_NSQD"
DEFAULT_COMMAND = (sys.executable, "-m", "pumpline.tools.nsqd")
LOOKUPD_COMMAND_VARIABLE = "PUMPLINE_TEST_NSQLOOKUPD"
LOOKUPD_DEFAULT_COMMAND = (sys.executable, "-m", "pumpline.tools.nsqlookupd")
# Nobody waits this long when all is well; a busy machine may need much of it.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
IO_TIMEOUT_S = 60.0
POLL_S = 0.01
LOG_TAIL_CHARS = 2000

FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
MESSAGE_HEADER = struct.Struct(">qH16s")

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Polls until the predicate is true, and returns what it gave."""
    deadline = time.monotonic() + timeout_s
    while not (outcome := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {outcome!r} after {timeout_s} s")
        time.sleep(POLL_S)
    return outcome


class Daemon:
    """A process on loopback ports of its own; a context manager that starts and stops it."""

    program = ""
    command_variable = ""
    default_command: tuple[str, ...] = ()

    def __init__(self, log_path: Path, flags: Sequence[str] = ()) -> None:
        self.flags = list(flags)
        self.log_path = log_path
        self.tcp_port = 0
        self.http_port = 0
        self._ports: tuple[HeldPort, HeldPort] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start_bytes = 0

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.stop()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.program} was never started"
        return self._process

    @property
    def tcp_address(self) -> str:
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def start(self, *, tcp_port: int = 0, http_port: int = 0) -> Self:
        """On ports that stay its own until the object is gone, or on those that are given."""
        assert not self.is_running, f"{self.program} is already running"
        self._ports = self._ports or (HeldPort(), HeldPort())
        tcp_port = tcp_port or self._ports[0].number
        http_port = http_port or self._ports[1].number
        command = [
            *(shlex.split(os.environ.get(self.command_variable, "")) or self.default_command),
            f"--tcp-address=127.0.0.1:{tcp_port}",
            f"--http-address=127.0.0.1:{http_port}",
            *self._data_flags(),
            *self.flags,
        ]
        with self.log_path.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.tcp_port = self.listening_port("TCP")
            self.http_port = self.listening_port("HTTP")
        except BaseException as error:
            error.add_note(self._tail())
            self.process.kill()
            self.process.wait()
            raise
        return self

    def stop(self) -> int:
        """Asks it to end (SIGTERM) and returns its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Ends it with no chance to clean up (SIGKILL)."""
        return self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stops it if it runs, and starts it on the same ports, so that clients find it again."""
        if self.is_running:
            self.stop()
        return self.start()

    def log_text(self) -> str:
        """Everything written by all runs with this log file."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def listening_port(self, service: str) -> int:
        """The port of TCP, HTTP or HTTPS in the present run, read from the log."""
        line = re.compile(rb"(?<!\w)%b: listening on 127\.0\.0\.1:(\d+)\r?\n" % service.encode())

        def found() -> re.Match[bytes] | None:
            return line.search(self.log_path.read_bytes(), self._log_start_bytes)

        wait_until(lambda: found() or not self.is_running, START_TIMEOUT_S)
        match = found()
        assert match, f"{self.program} ended with {self.process.poll()}, not listening on {service}"
        return int(match[1])

    def http(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=IO_TIMEOUT_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _data_flags(self) -> list[str]:
        """Where its data is, of a daemon that has any, and where else it may listen."""
        return []

    def _end(self, signal_number: signal.Signals) -> int:
        self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            ignored = f"{self.program} ignored {signal_number.name}"
            raise AssertionError(f"{ignored}\n{self._tail()}") from None

    def _tail(self) -> str:
        return self.log_text()[-LOG_TAIL_CHARS:]


class Nsqd(Daemon):
    program = "nsqd"
    command_variable = COMMAND_VARIABLE
    default_command = DEFAULT_COMMAND

    def __init__(self, data_path: Path, flags: Sequence[str] = ()) -> None:
        # Beside the data directory: what lies inside it belongs to the daemon.
        super().__init__(data_path.with_name(data_path.name + ".stderr"), flags)
        self.data_path = data_path

    def start(self, *, tcp_port: int = 0, http_port: int = 0) -> Self:
        self.data_path.mkdir(parents=True, exist_ok=True)
        return super().start(tcp_port=tcp_port, http_port=http_port)

    def _data_flags(self) -> list[str]:
        # With a certificate it listens for HTTPS, too: on 4152, if nobody says where.
        secured = any(flag.startswith("--tls-cert") for flag in self.flags)
        https = ["--https-address=127.0.0.1:0"] if secured else []
        return [f"--data-path={self.data_path}", *https]

    def restart_after_power_loss(self) -> None:
        """Kills it, and lets its next start take that for a loss of power."""
        self.kill()
        mark = self.data_path / RUN_MARK
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "boot_id": "another"}))
        self.start()

    def stats(self, topic: str | None = None) -> dict[str, Any]:
        query = "" if topic is None else f"&topic={quote(topic)}"
        status, body = self.http("GET", f"/stats?format=json{query}")
        assert status == 200, (status, body)
        decoded: dict[str, Any] = json.loads(body)
        return decoded

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """Counters of one channel; empty while it does not exist."""
        for found_topic in self.stats(topic)["topics"] or ():
            for found in found_topic["channels"]:
                if found["channel_name"] == channel:
                    return dict(found)
        return {}

    def connect(self) -> RawClient:
        return RawClient(self.tcp_port)

    @contextmanager
    def limited(self, limit: int, value: int) -> Iterator[None]:
        """Lowers one of the running process's soft limits, then puts it back."""
        pid = self.process.pid
        soft, hard = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (value, hard))
        try:
            yield
        finally:
            if self.is_running:
                resource.prlimit(pid, limit, (soft, hard))

    @contextmanager
    def failing_disk(self) -> Iterator[None]:
        """Every write to a file fails with EFBIG, as it would with ENOSPC on a full disk."""
        with self.limited(resource.RLIMIT_FSIZE, 0):
            yield

    def drop_history(self, topic: str, until: int = 1) -> None:
        """Makes nsqd delete the consumed segments of a topic, at least those before an offset.

        nsqd deletes history when a publish finds no room on the disk. It begins with any topic and
        stops after some milliseconds, so a single refused publish may delete only the history of
        other topics.
        """

        def is_gone() -> bool:
            with self.failing_disk():
                self._publish_in_vain(topic)
            status, body = self.http("GET", f"/log/offsets?topic={quote(topic)}")
            assert status == 200, body
            return int(json.loads(body)["first"]) >= until

        wait_until(is_gone)

    def _publish_in_vain(self, topic: str) -> None:
        with self.connect() as client:
            client.send_command(f"PUB {topic}", b"refused")
            try:
                answer = client.read_response()
            except ErrorFrame:
                return
        raise AssertionError(f"a publish was answered with {answer!r}, though the disk failed")


class Nsqlookupd(Daemon):
    program = "nsqlookupd"
    command_variable = LOOKUPD_COMMAND_VARIABLE
    default_command = LOOKUPD_DEFAULT_COMMAND


class ErrorFrame(Exception):
    """nsqd answered a command with an error frame; the text is the frame's data."""


class RawMessage(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: str
    body: bytes


class RawClient:
    """A blocking V2 connection that hides nothing: one call, one command or one frame."""

    def __init__(self, port: int, magic: bytes = b"  V2") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._messages: deque[RawMessage] = deque()
        self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.settimeout(IO_TIMEOUT_S)
        self.socket.sendall(data)

    def send_command(self, line: str, body: bytes | None = None) -> None:
        sized = b"" if body is None else struct.pack(">i", len(body)) + body
        self.send(line.encode() + b"\n" + sized)

    def read_frame(self, timeout_s: float = IO_TIMEOUT_S) -> tuple[int, bytes]:
        """The next frame of any kind; TimeoutError if none came whole, EOFError if closed."""
        deadline = time.monotonic() + timeout_s
        self._receive(4, deadline)
        size = int.from_bytes(self._received[:4])
        self._receive(4 + size, deadline)
        frame = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return int.from_bytes(frame[:4]), frame[4:]

    def read_response(self, timeout_s: float = IO_TIMEOUT_S) -> bytes:
        """The next answer; messages that came before it are kept for read_message."""
        while (data := self._read_past_heartbeat(timeout_s)) is None:
            pass
        return data

    def read_message(self, timeout_s: float = IO_TIMEOUT_S) -> RawMessage:
        while not self._messages:
            answer = self._read_past_heartbeat(timeout_s)
            assert answer is None, f"unexpected response {answer!r}"
        return self._messages.popleft()

    def identify(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What was negotiated; empty without feature_negotiation."""
        self.send_command("IDENTIFY", json.dumps(options).encode())
        answer = self.read_response()
        return {} if answer == b"OK" else dict(json.loads(answer))

    def publish(self, topic: str, body: bytes, *, defer_ms: int | None = None) -> None:
        verb = f"PUB {topic}" if defer_ms is None else f"DPUB {topic} {defer_ms}"
        self._expect_ok(verb, body)

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        sized = (struct.pack(">i", len(body)) + body for body in bodies)
        self._expect_ok(f"MPUB {topic}", struct.pack(">i", len(bodies)) + b"".join(sized))

    def sub(self, topic: str, channel: str) -> None:
        self._expect_ok(f"SUB {topic} {channel}")

    def rdy(self, count: int) -> None:
        self.send_command(f"RDY {count}")

    def fin(self, message_id: str) -> None:
        self.send_command(f"FIN {message_id}")

    def req(self, message_id: str, delay_ms: int = 0) -> None:
        self.send_command(f"REQ {message_id} {delay_ms}")

    def touch(self, message_id: str) -> None:
        self.send_command(f"TOUCH {message_id}")

    def _expect_ok(self, line: str, body: bytes | None = None) -> None:
        self.send_command(line, body)
        answer = self.read_response()
        assert answer == b"OK", f"{line}: {answer!r}"

    def _read_past_heartbeat(self, timeout_s: float) -> bytes | None:
        """Reads one frame: an answer is returned, a message kept, a heartbeat answered."""
        kind, data = self.read_frame(timeout_s)
        if kind == FRAME_ERROR:
            raise ErrorFrame(data.decode())
        if kind == FRAME_MESSAGE:
            timestamp_ns, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
            body = data[MESSAGE_HEADER.size :]
            self._messages.append(RawMessage(timestamp_ns, attempts, message_id.decode(), body))
        elif data == b"_heartbeat_":
            self.send_command("NOP")
        else:
            return data
        return None

    def _receive(self, wanted_bytes: int, deadline: float) -> None:
        while len(self._received) < wanted_bytes:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise EOFError("nsqd closed the connection")
            self._received += chunk
