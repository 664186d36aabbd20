"""A client on the same machine is sent to without pacing, on each of the event loops."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import uvloop

from tests.kit.fuzz.inprocess import InProcess
from tests.kit.sockets import accepted_end
from tests.kit.wire.commands import MAGIC

NAME_BYTES = 16
OPTION = getattr(socket, "TCP_CONGESTION", None)


@pytest.mark.skipif(OPTION is None, reason="this system has no TCP_CONGESTION")
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_not_paced(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    assert OPTION is not None

    async def congestion_control(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(MAGIC + b"SUB t c\n")
            await reader.readexactly(4)  # the connection has begun
            client = writer.get_extra_info("socket")
            with closing(accepted_end(client)) as other:
                return bytes(other.getsockopt(socket.IPPROTO_TCP, OPTION, NAME_BYTES))

    with InProcess(tmp_path, loop_factory=loop_factory) as nsqd:
        found = nsqd.run(congestion_control(nsqd.ports.tcp))
    assert found.rstrip(b"\0") == b"reno"
