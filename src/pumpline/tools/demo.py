"""`pumpline demo`: a broker, a publisher and consumers, a kill -9 in the middle, and a count.

Everything is real: nsqd runs as a process of its own, in a temporary directory, and is killed with
SIGKILL while messages flow. At the end each channel must have had every acknowledged message.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from struct import Struct

from rich.console import Console
from rich.table import Table

BATCH_MESSAGES = 100
BEFORE_BATCHES = 100  # published before anybody listens
KILL_AFTER_S = 1.0  # of publishing and consuming at once
QUIET_S = 1.5  # a channel that sends nothing for this long is drained
TOPIC = b"orders"
CHANNELS = ("billing", "audit")

_SIZE = Struct(">i")
_HEAD = Struct(">ii")
_ID_AT = 10
_BODY_AT = 26
_START_S_MAX = 20.0

USAGE = """usage: pumpline demo

Starts nsqd in a temporary directory, publishes and consumes, kills nsqd with
SIGKILL in the middle, starts it again, and counts what every channel received.
"""


def main(argv: Sequence[str] | None = None) -> int:
    if argv if argv is not None else sys.argv[1:]:
        print(USAGE, end="")
        return 0
    console = Console()
    with tempfile.TemporaryDirectory(prefix="pumpline-demo-") as directory:
        try:
            return _run(console, directory)
        except (OSError, EOFError) as error:
            console.print(f"[red]The demo could not finish:[/] {error}")
            return 1


def _run(console: Console, directory: str) -> int:
    broker = BrokerProcess(directory)
    try:
        broker.start()
        console.print(f"[bold]1.[/] nsqd runs on 127.0.0.1:{broker.port}, data in {directory}")

        acknowledged: list[bytes] = []
        with Client(broker.port) as publisher:
            for channel in CHANNELS:
                Client(broker.port).subscribe(channel, rdy=0)
            for batch in range(BEFORE_BATCHES):
                acknowledged += publisher.publish(batch)
        console.print(
            f"[bold]2.[/] {len(acknowledged):,} orders published and acknowledged; "
            f"channels {' and '.join(CHANNELS)} get each of them"
        )

        received = {channel: Counter[bytes]() for channel in CHANNELS}
        consumer = threading.Thread(target=_consume, args=(broker.port, received["billing"]))
        consumer.start()
        killer = threading.Timer(KILL_AFTER_S, broker.kill)
        killer.start()
        acknowledged += _publish_until_cut(broker.port)
        consumer.join()
        killer.join()
        console.print(
            f"[bold]3.[/] kill -9 while publishing and consuming: {len(acknowledged):,} orders "
            f"acknowledged by then, {sum(received['billing'].values()):,} consumed by billing"
        )

        broker.start()
        console.print("[bold]4.[/] nsqd is up again on the same directory; the channels drain")
        for channel in CHANNELS:
            _drain(broker.port, channel, received[channel])
        return _report(console, acknowledged, received)
    finally:
        broker.stop()


def _publish_until_cut(port: int) -> list[bytes]:
    acknowledged: list[bytes] = []
    try:
        with Client(port) as publisher:
            for batch in range(BEFORE_BATCHES, sys.maxsize):
                acknowledged += publisher.publish(batch)
    except (OSError, EOFError):
        pass  # nsqd is gone: what was not acknowledged does not count
    return acknowledged


def _consume(port: int, received: Counter[bytes]) -> None:
    """Consume until nsqd is gone."""
    try:
        with Client(port) as client:
            client.subscribe("billing", rdy=500)
            for message_id, body in client.messages():
                received[body] += 1
                client.finish(message_id)
    except (OSError, EOFError):
        pass


def _drain(port: int, channel: str, received: Counter[bytes]) -> None:
    """Consume until nothing comes any more."""
    with Client(port) as client:
        client.subscribe(channel, rdy=500)
        client.quiet_after(QUIET_S)
        try:
            for message_id, body in client.messages():
                received[body] += 1
                client.finish(message_id)
        except TimeoutError:
            return


def _report(
    console: Console, acknowledged: list[bytes], received: dict[str, Counter[bytes]]
) -> int:
    table = Table("channel", "acknowledged", "received", "twice", "lost")
    lost_total = 0
    for channel, counts in received.items():
        lost = sum(1 for body in acknowledged if body not in counts)
        twice = sum(1 for count in counts.values() if count > 1)
        lost_total += lost
        table.add_row(
            channel, f"{len(acknowledged):,}", f"{len(counts):,}", f"{twice:,}", f"{lost:,}"
        )
    console.print(table)
    if lost_total:
        console.print(f"[red]{lost_total:,} acknowledged messages were lost.[/]")
        return 1
    console.print(
        "Nothing acknowledged was lost. What came twice was in flight, or finished in the last\n"
        "tenth of a second before the kill; more received than acknowledged means that a batch\n"
        "was written, and nsqd killed before it could say so."
    )
    return 0


class BrokerProcess:
    """nsqd as a child process."""

    def __init__(self, directory: str) -> None:
        self.port = 0
        self._directory = directory
        self._log = directory + ".log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pumpline.tools.nsqd",
                    f"--tcp-address=127.0.0.1:{self.port}",
                    "--http-address=",
                    f"--data-path={self._directory}",
                ],
                stderr=log,
            )
        self.port = self._listening_port()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        if os.path.exists(self._log):
            os.unlink(self._log)

    def _listening_port(self) -> int:
        assert self._process is not None
        deadline_s = time.monotonic() + _START_S_MAX
        while time.monotonic() < deadline_s:
            with open(self._log) as log:
                text = log.read()
            if "TCP: listening on" in text:
                return int(text.split("TCP: listening on ")[1].split()[0].rpartition(":")[2])
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise OSError(f"nsqd did not start:\n{text}")


class Client:
    """As much of a blocking NSQ client as the demo needs."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._stream = self._socket.makefile("rb", buffering=1 << 16)
        self._socket.sendall(b"  V2")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()
        self._socket.close()

    def publish(self, batch: int) -> list[bytes]:
        """Publish one batch of orders; returns them once nsqd has acknowledged."""
        bodies = [b'{"order":%d}' % (batch * BATCH_MESSAGES + n) for n in range(BATCH_MESSAGES)]
        sized = b"".join(_SIZE.pack(len(body)) + body for body in bodies)
        command = b"MPUB " + TOPIC + b"\n"
        self._socket.sendall(command + _HEAD.pack(4 + len(sized), len(bodies)) + sized)
        self._response()
        return bodies

    def subscribe(self, channel: str, *, rdy: int) -> None:
        command = b"SUB " + TOPIC + b" " + channel.encode() + b"\n"
        self._socket.sendall(command)
        self._response()
        self._socket.sendall(b"RDY %d\n" % rdy)

    def finish(self, message_id: bytes) -> None:
        self._socket.sendall(b"FIN " + message_id + b"\n")

    def quiet_after(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            kind, data = self._frame()
            if kind == 2:
                yield data[_ID_AT:_BODY_AT], data[_BODY_AT:]
            elif data == b"_heartbeat_":
                self._socket.sendall(b"NOP\n")

    def _response(self) -> None:
        kind, data = self._frame()
        if kind != 0:
            raise OSError(f"nsqd answered {data.decode()}")

    def _frame(self) -> tuple[int, bytes]:
        head = self._stream.read(8)
        if len(head) < 8:
            raise EOFError("nsqd closed the connection")
        size, kind = _HEAD.unpack(head)
        data = self._stream.read(size - 4)
        if len(data) < size - 4:
            raise EOFError("nsqd closed the connection")
        return kind, data


if __name__ == "__main__":
    sys.exit(main())
