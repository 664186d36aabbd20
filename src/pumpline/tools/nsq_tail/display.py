"""Where nsq_tail's messages go: stdout, at most so many of all topics together, some left out."""

import asyncio
from collections.abc import Iterable

from pumpline.tools.nsq_tail.formats import Print, TailedMessage
from pumpline.tools.tool import write_out


class Display:
    def __init__(
        self, print_one: Print, *, count_max: int, contains: bytes, stop: asyncio.Event
    ) -> None:
        """`stop` is set when enough was printed, or nobody reads stdout any more."""
        self._print = print_one
        self._left = count_max or None
        self._contains = contains
        self._stop = stop
        self.is_full = False

    def show(self, messages: Iterable[TailedMessage]) -> int:
        """Print them; returns how many were dealt with before it was enough."""
        dealt_with: list[TailedMessage] = []
        lines: list[bytes] = []
        for message in messages:
            if self._left == 0:
                break
            dealt_with.append(message)
            if self._contains in message.body:
                lines.append(self._print(message))
                if self._left is not None:
                    self._left -= 1
        try:
            write_out(b"".join(lines))
        except BrokenPipeError:
            self._left = 0
            dealt_with.clear()
        if self._left == 0:
            self.is_full = True
            self._stop.set()
        return len(dealt_with)
