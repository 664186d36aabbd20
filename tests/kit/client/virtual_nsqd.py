"""A real nsqd and real clients on one event loop with a virtual clock: hours pass in milliseconds.

nsqd runs on the simulator's disk and network; the client's connections are links of that network.
Only handlers on the event loop: there are no threads.
"""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tests.kit.sim.loop import VirtualLoop
from tests.kit.sim.machine import Machine
from tests.kit.sim.network import Link
from tests.kit.sim.seams import simulated

ADDRESS = "127.0.0.1:4150"
NS_PER_S = 1_000_000_000
RUN_S = 1e6  # of virtual time; a run that needs more is stuck


class ClientTransport(asyncio.Transport):
    """The client's end of a link."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._link: Link | None = None
        self._is_closing = False

    def open(self, machine: Machine) -> None:
        self._link = machine.connect(self)
        if self._link is None:
            raise ConnectionRefusedError("nobody listens")
        self._protocol.connection_made(self)

    # -- what the link calls --------------------------------------------------------------------

    def arrived(self, end: int) -> None: ...

    def written(self, data: bytes) -> None:
        self._loop.call_soon(self._receive, data)

    def lost(self) -> None:
        self._is_closing = True
        self._loop.call_soon(self._protocol.connection_lost, None)

    def _receive(self, data: bytes) -> None:
        if not self._is_closing:
            self._protocol.data_received(data)

    # -- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._link is not None and not self._is_closing:
            self._link.send(bytes(data))

    def close(self) -> None:
        if self._link is not None and not self._is_closing:
            self._is_closing = True
            self._link.hang_up(politely=True)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class VirtualNsqd:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def loop(self) -> VirtualLoop:
        return self._machine.loop

    def run(self, work: Coroutine[Any, Any, None], limit_s: float = RUN_S) -> None:
        self.loop.complete(work, limit_s)
        assert not self.loop.faults, self.loop.faults

    def publish(self, topic: str, channel: str, bodies: list[bytes]) -> None:
        for path in (
            f"/topic/create?topic={topic}",
            f"/channel/create?topic={topic}&channel={channel}",
        ):
            assert self._machine.request("POST", path).status == 200
        for body in bodies:
            assert self._machine.request("POST", f"/pub?topic={topic}", body).status == 200

    def stats(self, topic: str, channel: str) -> dict[str, Any]:
        reply = self._machine.request("GET", f"/stats?format=json&topic={topic}&channel={channel}")
        [found] = json.loads(reply.body)["topics"]
        return dict(found["channels"][0])

    def has_topic(self, topic: str) -> bool:
        reply = self._machine.request("GET", f"/stats?format=json&topic={topic}")
        return bool(json.loads(reply.body)["topics"])


@contextmanager
def virtual_nsqd(seed: int = 0, **options: Any) -> Iterator[VirtualNsqd]:
    """`options` are nsqd's, as `nsqd.options.Options` has them."""
    chance = random.Random(seed)
    machine = Machine(chance, **options)
    with simulated(machine.disk, machine.clock, chance, channels_at_once=64, direct_bytes=1 << 16):
        machine.start()

        async def create_connection(
            make: Callable[[], asyncio.Protocol], host: str, port: int
        ) -> tuple[ClientTransport, asyncio.Protocol]:
            protocol = make()
            transport = ClientTransport(machine.loop, protocol)
            transport.open(machine)
            return transport, protocol

        machine.loop.create_connection = create_connection  # type: ignore[assignment]
        try:
            yield VirtualNsqd(machine)
        finally:
            machine.kill()
