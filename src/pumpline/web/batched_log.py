"""Log lines that can wait for the end of this turn of the event loop. Many then cost as much as
one: a daemon that answers thousands of requests a second would spend a third of its time on them.
"""

import asyncio
import logging

from pumpline.core.text.lines import Lines


class LogSoon:
    """At level INFO. Call `flush` before a line of another kind that must come after these."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lines: list[str] = []

    @property
    def enabled(self) -> bool:
        return self._log.isEnabledFor(logging.INFO)

    def add(self, line: str) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(line)

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = Lines(self._lines), []
            self._log.info(lines)
