"""A connection of an nsqd, on a transport that only notes what is done to it."""

import asyncio

import pytest

from pumpline.nsqlookupd.connection import TURN_COMMANDS, V1Connection, V1Connections
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.protocol import OK, reply
from pumpline.nsqlookupd.registry import Registry

COUNT = 3 * TURN_COMMANDS
PING = b"PING\n"
ANSWER = reply(OK)


class Notes(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


@pytest.fixture
async def connection() -> V1Connection:
    registry = Registry(inactive_ns=1, tombstone_ns=1)
    return V1Connections(registry, LostNodes(timeout_ns=1), connections_max=0)()


async def test_commands_are_carried_out_in_turns_and_nothing_is_read_meanwhile(
    connection: V1Connection,
) -> None:
    transport = Notes()
    connection.connection_made(transport)
    connection.data_received(b"  V1" + PING * COUNT)
    for turn in range(1, 4):
        assert transport.written == ANSWER * TURN_COMMANDS * turn
        assert not transport.reading
        await asyncio.sleep(0)
    assert transport.reading
    connection.data_received(PING)
    assert transport.written == ANSWER * (COUNT + 1)
    assert transport.reading


async def test_an_error_among_many_commands_ends_the_connection_after_their_replies(
    connection: V1Connection,
) -> None:
    transport = Notes()
    connection.connection_made(transport)
    connection.data_received(b"  V1" + PING * (TURN_COMMANDS + 1) + b"BAD\n" + PING * COUNT)
    await asyncio.sleep(0)
    error = reply(b"E_INVALID invalid command BAD")
    assert transport.written == ANSWER * (TURN_COMMANDS + 1) + error
    assert transport.ended and transport.reading
    connection.data_received(PING)
    connection.connection_lost(None)
    assert transport.written.endswith(error)


async def test_a_client_that_does_not_take_its_replies_is_not_read(
    connection: V1Connection,
) -> None:
    transport = Notes()
    connection.connection_made(transport)
    connection.pause_writing()
    connection.data_received(b"  V1" + PING * COUNT)
    for _ in range(4):
        await asyncio.sleep(0)
    assert transport.written == ANSWER * COUNT
    assert not transport.reading
    connection.resume_writing()
    assert transport.reading


async def test_a_connection_that_is_gone_carries_out_nothing_more(
    connection: V1Connection,
) -> None:
    transport = Notes()
    connection.connection_made(transport)
    connection.data_received(b"  V1" + PING * COUNT)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert transport.written == ANSWER * TURN_COMMANDS
