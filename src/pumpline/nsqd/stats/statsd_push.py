"""Sends figures to a statsd daemon every --statsd-interval, by UDP.

The packets of one push are spread over the interval but for its last second. Nothing that becomes
of them matters to the broker: what cannot be sent is logged, once a push, and forgotten.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pumpline.core.text.durations import NS_PER_S
from pumpline.nsqd.options import Options
from pumpline.nsqd.stats.stats import Stats
from pumpline.nsqd.stats.statsd import lines, packets
from pumpline.web.yielding import Pace

_REST_S = 1.0  # of the interval, that is left quiet

_LOG = logging.getLogger(__name__)

Address = tuple[socket.AddressFamily, Any]


class StatsdPush:
    def __init__(self, options: Options, gather: Callable[[], Awaitable[Stats]]) -> None:
        """`gather` reads the figures."""
        self._options = options
        self._gather = gather
        self._interval_s = options.statsd_interval_ns / NS_PER_S
        self._last: Stats | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="statsd")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            # Pushes that took too long are not made up for.
            due_s = max(due_s + self._interval_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            try:
                await self._push()
            except Exception:
                _LOG.exception("STATSD: push failed")

    async def _push(self) -> None:
        options = self._options
        _LOG.info("STATSD: pushing stats to %s", options.statsd_address)
        stats = await self._gather()
        last, self._last = self._last, stats
        packed = await self._pack(stats, last)
        try:
            family, address = await _resolve(options.statsd_address)
        except (OSError, ValueError) as error:
            _LOG.error(
                "failed to create UDP socket to statsd(%s) - %s", options.statsd_address, error
            )
            return
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.setblocking(False)
            await self._send(udp, address, packed)

    async def _pack(self, stats: Stats, last: Stats | None) -> list[bytes]:
        options = self._options
        pace = Pace()
        result = []
        pieces = lines(stats, last, exclude_ephemeral=options.statsd_exclude_ephemeral)
        for packet in packets(options.statsd_prefix, pieces, options.statsd_udp_packet_size):
            result.append(packet)
            await pace.breathe()
        return result

    async def _send(self, udp: socket.socket, address: Any, packed: list[bytes]) -> None:
        pause_s = max(self._interval_s - _REST_S, 0.0) / max(len(packed), 1)
        error: OSError | None = None
        for packet in packed:
            try:
                udp.sendto(packet, address)
            except OSError as problem:
                error = problem
            await asyncio.sleep(pause_s)
        if error is not None:
            _LOG.error("STATSD: cannot send to %s - %s", self._options.statsd_address, error)


async def _resolve(text: str) -> Address:
    """Where packets for `<host>:<port>` go; asked anew for each push, as hosts move."""
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("missing port in address")
    found = await asyncio.get_running_loop().getaddrinfo(
        host.removeprefix("[").removesuffix("]") or "127.0.0.1",
        int(port),
        type=socket.SOCK_DGRAM,
    )
    family, _, _, _, address = found[0]
    return family, address
