"""Where nsq_tail's messages go: stdout, at most so many of all topics together, some left out."""

import asyncio
from collections.abc import Iterable

from pumpline.tools.nsq_tail.formats import Print, TailedMessage
from pumpline.tools.stdout import Stdout


class Display:
    def __init__(
        self, out: Stdout, print_one: Print, *, count_max: int, contains: bytes, stop: asyncio.Event
    ) -> None:
        """`stop` is set when enough was printed."""
        self._out = out
        self._print = print_one
        self._left = count_max or None
        self._contains = contains
        self._stop = stop
        self._turn = asyncio.Lock()
        self.is_full = False

    async def show(self, messages: Iterable[TailedMessage]) -> int:
        """Print them; returns how many were dealt with before it was enough, or `stop` was set."""
        async with self._turn:
            parts: list[bytes] = []
            left = self._left
            for message in messages:
                if left == 0:
                    break
                is_wanted = self._contains in message.body
                parts.append(self._print(message) if is_wanted else b"")
                if left is not None:
                    left -= is_wanted
            dealt_with = await self._out.write(parts)
            self._left = left
            if left == 0:
                self.is_full = True
                self._stop.set()
            return dealt_with
