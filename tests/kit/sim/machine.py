"""One machine: its clocks, its disk, and the nsqd that runs on it until it is killed.

`Machine` starts nsqd's own `Server` on a virtual loop, network and disk. It can be killed at any
callback and in any call to the disk, lose power, stop in order, and start again on what is left.
Knows nothing of what is right: that is in `ledger`.
"""

import json
import logging
import random
from collections.abc import Callable
from typing import Any

from pumpline.nsqd.broker import Broker
from pumpline.nsqd.options import Options
from pumpline.nsqd.server import Server
from pumpline.web.sockets import StartupError
from tests.kit.sim.disk import SimDisk
from tests.kit.sim.loop import Killed, VirtualClock, VirtualLoop
from tests.kit.sim.network import Link, Network, Peer, SimClaim

DATA_PATH = "/data"
REPLY_S = 30.0  # that a reply may take, of virtual time


class LoggedExceptions(logging.Handler):
    """Keeps what nsqd logs with a traceback: none should be there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self.found.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


def _may_be_early(callback: Callable[..., object]) -> bool:
    """Timers of nsqd's queue and storage: to file, sync or try again sooner breaks no promise, and
    a channel's timer looks at the clock. Others, such as a client's time limit, are exact."""
    return getattr(callback, "__func__", None) is Server._on_timer


class Machine:
    def __init__(self, chance: random.Random, **options: Any) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        self.disk = SimDisk(self.clock, chance)
        self.disk.makedirs(DATA_PATH)
        self.disk.root.synced = dict(self.disk.root.names)
        self.options = options
        self.thread_delay_s = 0.02
        self.kills = 0
        self.power_losses = 0  # of these kills
        self.logged = LoggedExceptions()
        self.faults: list[str] = []
        self.loop: VirtualLoop
        self.network: Network
        self._server: Server | None = None

    @property
    def is_up(self) -> bool:
        return self._server is not None

    @property
    def broker(self) -> Broker | None:
        """Of the process that runs, once it has loaded what it has."""
        return None if self._server is None else self._server.broker

    @property
    def is_dead(self) -> bool:
        """It was killed, and nobody has looked at it since."""
        return self.loop.is_dead or self.disk.is_dead

    def start(self) -> None:
        """Start nsqd. Killed if it dies meanwhile, StartupError or OSError if it gives up."""
        self.disk.new_process()
        self.loop = VirtualLoop(self.clock, self.chance)
        self.loop.thread_delay_s = self.thread_delay_s
        self.loop.may_be_early = _may_be_early
        self.network = Network(self.loop, self.chance)
        options = Options(
            data_path=DATA_PATH, broadcast_address="sim", http_address="sim", **self.options
        )

        async def begin() -> Server:
            server = self._server = Server(options, SimClaim(DATA_PATH))  # type: ignore[arg-type]
            await server.start()
            return server

        try:
            self.loop.complete(begin())
        except (StartupError, OSError):
            self._end()
            raise
        if self.is_dead:
            raise Killed

    def run(self, seconds: float) -> None:
        self.loop.run(seconds)

    def kill(self, *, power: bool = False) -> None:
        """The process ends now, or has ended; with `power` what was not synced is gone, too."""
        self.disk.is_dead = True
        self.kills += 1
        self._end()
        if power:
            self.power_losses += 1
            self.disk.lose_power()

    def stop(self) -> None:
        """The process ends in order. Killed if it dies before."""
        server = self._server
        assert server is not None
        self.loop.complete(server.close())
        if self.is_dead:
            raise Killed
        self._end()

    def _end(self) -> None:
        self.faults += self.loop.faults
        self.loop.is_dead = True
        self.network.die()
        self.loop.bury()
        if self._server is not None:
            self._server.memory.close()
        self._server = None
        self.disk.kill_after = -1

    # -- clients ------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> Link | None:
        return self.network.connect("TCP", peer)

    def request(self, method: str, path: str, body: bytes = b"") -> "Reply":
        """Ask nsqd's HTTP API, and wait for the reply, or for the end of the process."""
        call = HttpCall()
        link = self.network.connect("HTTP", call)
        if link is not None:
            head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            call.expects = len(head) + len(body)
            link.send(head.encode() + body)
            self.loop.run(REPLY_S, lambda: call.is_done or self.disk.is_dead)
            if self.disk.is_dead:
                self.loop.is_dead = True
            link.hang_up(politely=True)
        return Reply(call.status, call.body, was_read=call.was_read)


class Reply:
    def __init__(self, status: int, body: bytes, *, was_read: bool) -> None:
        self.status = status  # 0: none came
        self.body = body
        self.was_read = was_read  # nsqd had the whole request

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    @property
    def is_unknown(self) -> bool:
        """Whether it was done or not cannot be told."""
        return self.status == 0 and self.was_read

    def json(self) -> Any:
        return json.loads(self.body)


class HttpCall:
    """A client with one request."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_done = False
        self.was_read = False
        self.expects = 0
        self._data = b""

    def arrived(self, end: int) -> None:
        self.was_read = end >= self.expects

    def written(self, data: bytes) -> None:
        self._data += data
        head, mark, body = self._data.partition(b"\r\n\r\n")
        if not mark:
            return
        lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        if fields.get("transfer-encoding") == "chunked":
            whole = _joined_chunks(body)
        else:
            whole = body if len(body) >= int(fields.get("content-length", 0)) else None
        if whole is not None:
            self.status = int(lines[0].split()[1])
            self.body = whole
            self.is_done = True

    def lost(self) -> None:
        self.is_done = True


def _joined_chunks(data: bytes) -> bytes | None:
    """A body that came in chunks; None if it is not whole yet."""
    body = b""
    while True:
        line, mark, data = data.partition(b"\r\n")
        size = int(line, 16) if mark else 0
        if not mark or len(data) < size + 2:
            return None
        if not size:
            return body
        body += data[:size]
        data = data[size + 2 :]
