"""Large bodies of plain requests, received where they stay.

On the long way a body of 1 MiB is copied four times before anybody looks at it, in pieces of 64 KiB
that each wake a task. Here the socket is read into a room of the right size until the body is
whole. Rooms are used again, as fresh memory costs as much as a copy, and there are so many bytes of
them for all connections together; when they are lent out, bodies take the long way. Knows bytes;
must not know what is in them.
"""

import asyncio
from typing import Protocol

ROOM_BYTES_MAX = 4 << 20  # a client as slow as `Patience` allows needs a minute for it
LENT_BYTES_MAX = 64 << 20
FREE_MAX = 4  # rooms kept for later
STEP_BYTES = 256 << 10  # sizes of rooms, so that bodies of about a size can have the same


class Rooms:
    """Buffers for the bodies that are on their way."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._lent_bytes = 0

    def lend(self, size_bytes: int) -> bytearray | None:
        """One with space for that many bytes, if it may be had."""
        room_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        for index, room in enumerate(self._free):
            if len(room) >= size_bytes:
                room_bytes = len(self._free.pop(index))
                break
        else:
            room = bytearray()
        if room_bytes > ROOM_BYTES_MAX or self._lent_bytes + room_bytes > LENT_BYTES_MAX:
            return None
        self._lent_bytes += room_bytes
        return room or bytearray(room_bytes)

    def give_back(self, room: bytearray) -> None:
        self._lent_bytes -= len(room)
        if len(self._free) == FREE_MAX:
            del self._free[0]  # too small for what comes now, or one as good as this
        self._free.append(room)

    def forget(self) -> None:
        """Give memory back that is not used."""
        self._free.clear()


class Owner(Protocol):
    """Whose connection it is, and will be again."""

    def filled(self) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Filling(asyncio.BufferedProtocol):
    """Has a connection until one body is there, and no byte more."""

    def __init__(self, owner: Owner, room: bytearray, size_bytes: int, begin: memoryview) -> None:
        self.room = room
        self.size_bytes = size_bytes
        self._owner = owner
        self._view = memoryview(room)
        self._filled_bytes = len(begin)
        self._view[: len(begin)] = begin

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled_bytes : self.size_bytes]

    def buffer_updated(self, count: int) -> None:
        self._filled_bytes += count
        if self._filled_bytes == self.size_bytes:
            self._owner.filled()

    def eof_received(self) -> bool:
        """Half a request is none; what came before it is still answered."""
        return self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
