"""A warning that a retry would write again and again: the same text once in a while.

A wrong address fails at every try to connect, so without a limit its line would fill a log. Another
text is written at once, and so is the same one after `forget`.
"""

import logging
from collections.abc import Callable
from math import inf

REPEAT_S = 300.0


class RepeatedWarnings:
    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._text = ""
        self._said_at = -inf

    def warn(self, text: str) -> None:
        now = self._now()
        is_due = text != self._text or now - self._said_at >= REPEAT_S
        self._log.log(logging.WARNING if is_due else logging.DEBUG, "%s", text)
        if is_due:
            self._text, self._said_at = text, now

    def forget(self) -> None:
        """What failed works again: its next failure is news."""
        self._text = ""
