"""Turns: a client that sends many commands at once does not keep the others waiting.

A connection carries out what it received until its turn is over: after `TURN_COMMANDS`, `TURN_S`,
or a bufferful of bytes, as received or as unpacked. It reads no more until what is left is done,
for which it stands in line here. All who are in line get one turn after the other; after `ROUND_S`
of them the event loop first looks after everybody else.

Knows no sockets and no commands.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

TURN_COMMANDS = 1000  # a run of PUBs or FINs counts as one
TURN_S = 0.001
ROUND_S = 0.005


class InTurns(Protocol):
    """A connection."""

    def take_turn(self) -> None:
        """Must not fail."""


class Turns:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._line: deque[InTurns] = deque()
        self._scheduled = False

    def wait(self, connection: InTurns) -> None:
        """Call `take_turn` soon, after those who wait already."""
        self._line.append(connection)
        if not self._scheduled:
            self._schedule()

    def _run(self) -> None:
        self._scheduled = False
        round_ends_s = monotonic() + ROUND_S
        for _ in range(len(self._line)):
            self._line.popleft().take_turn()
            if monotonic() >= round_ends_s:
                break
        if self._line and not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._call_soon(self._run)
