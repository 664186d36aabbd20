"""An nsqd's connection that is closed leaves nothing behind, whatever it was doing: its memory is
free at once, without a collection."""

import asyncio

import pytest

from pumpline.nsqlookupd.connection import V1Connection, V1Connections
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.protocol import V1Reader
from pumpline.nsqlookupd.registry import Node, Registry
from tests.kit.leftovers import Leftovers
from tests.kit.wire.commands import identify

TIMES = 3
IDENTITY = {
    "broadcast_address": "127.0.0.1",
    "hostname": "h",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
SAID = {
    "nothing": b"",
    "no protocol": b"GET / HTTP/1.1\r\n\r\n",
    "no command": b"  V1NONSENSE\n",
    "a long IDENTIFY cut off": b"  V1" + identify({**IDENTITY, "x": "x" * 900_000})[:-1],
    "registrations": b"  V1" + identify(IDENTITY) + b"REGISTER t ch\n" * 100,
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_connection(said: bytes) -> None:
    registry = Registry(inactive_ns=10**12, tombstone_ns=10**12)
    connections = V1Connections(registry, LostNodes(timeout_ns=1), connections_max=0)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(connections, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with Leftovers(V1Connection, V1Reader, Node) as leftovers:
        for _ in range(TIMES):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            writer.write_eof()
            await reader.read()
            writer.close()
        await leftovers.none_left()
    listener.close()
