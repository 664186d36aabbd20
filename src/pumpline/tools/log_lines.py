"""A daemon's log lines, in two formats: NSQ's text, and JSON for log collectors.

| format | a line |
|---|---|
| text | `<prefix>YYYY/MM/DD HH:MM:SS.uuuuuu <LEVEL>: <message>`, in local time, as NSQ's |
| json | `{"time":"…Z","level":"info","program":"nsqd","message":"…"}`, in UTC; `error`: traceback |

Clients choose parts of a message. Both formats escape control characters, so that nobody can forge
a line or command a terminal.
"""

import json
import logging
from datetime import UTC, datetime

from pumpline.core.text.lines import Lines, escaped

_LEVEL_WORDS = {logging.CRITICAL: "FATAL"}


def level_word(record: logging.LogRecord) -> str:
    return _LEVEL_WORDS.get(record.levelno, record.levelname)


class LineFormatter(logging.Formatter):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._second = -1
        self._start = ""  # what all lines of that second begin with

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            when = datetime.fromtimestamp(second).strftime("%Y/%m/%d %H:%M:%S")
            self._second, self._start = second, f"{self.prefix}{when}"
        start = f"{self._start}.{int(record.created % 1 * 1_000_000):06d} {level_word(record)}: "
        if isinstance(record.msg, Lines):
            return "\n".join([start + escaped(line) for line in record.msg])
        text = start + escaped(record.getMessage())
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line. A collector reads it without a pattern."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program

    def format(self, record: logging.LogRecord) -> str:
        several = isinstance(record.msg, Lines)
        messages = record.msg if several else (record.getMessage(),)
        return "\n".join([self._line(record, message) for message in messages])

    def _line(self, record: logging.LogRecord, message: str) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": level_word(record).lower(),
            "program": self.program,
            "message": escaped(message),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
