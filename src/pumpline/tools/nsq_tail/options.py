"""The flags of nsq_tail, and what is wrong with their values.

Names, defaults and error texts are NSQ's. Ours: `json`, `format` and `contains`, and those that
read the log of pumpline nsqds without a channel: `from`, `to`, `peek`.
"""

from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text.dates import parse_time
from pumpline.core.text.flags import BOOL, INT, STRING, STRINGS, option
from pumpline.tools.nsq_tail.formats import format_fault
from pumpline.tools.sources import SourceOptions

BEGINNING = "beginning"
END = "end"


def is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit()  # other scripts have digits as well


@dataclass(slots=True, kw_only=True)
class TailOptions(SourceOptions):
    program: ClassVar[str] = "nsq_tail"

    topic: list[str] = option(STRINGS, list, "topic to print (repeats)")
    channel: str = option(STRING, "", "channel to consume; by default an ephemeral one of its own")
    n: int = option(INT, 0, "messages to print, then end; 0 for no limit")
    print_topic: bool = option(BOOL, False, "print the topic before each message")
    json: bool = option(
        BOOL,
        False,
        "print JSON lines: topic, node, offset, id, timestamp, attempts, body or body_base64 "
        "(not in NSQ)",
    )
    format: str = option(
        STRING,
        "",
        "print by this format: %s body, %S its size, %T time in ms, %t topic, %o offset, %i id, "
        "%a attempts, %n node, %% and \\n, \\t, \\0 (not in NSQ)",
    )
    contains: str = option(STRING, "", "print only messages that contain this (not in NSQ)")
    from_: str = option(
        STRING,
        "",
        "read the log, without a channel, from: beginning, end, an offset, or a time as "
        "2026-11-16T08:00:00Z (not in NSQ)",
    )
    to: str = option(STRING, "", "end there; as --from (not in NSQ)")
    peek: bool = option(
        BOOL,
        False,
        "print what is in the log, without a channel, and end: from --from, or the last -n "
        "messages (not in NSQ)",
    )
    nsqd_http_address: list[str] = option(
        STRINGS, list, "<addr>:<port> of a pumpline nsqd whose log is read (repeats; not in NSQ)"
    )
    token_file: str = option(STRING, "", "file with the access token for reading logs (not in NSQ)")

    @property
    def reads_log(self) -> bool:
        return bool(self.from_ or self.to or self.peek)

    def fault(self) -> str:
        if self.reads_log:
            if fault := self._log_fault():
                return fault
        elif fault := self.source_fault():
            return fault
        if not self.topic:
            return "--topic required"
        if self.json and self.format:
            return "use --json or --format not both"
        return format_fault(self.format)

    def _log_fault(self) -> str:
        if self.nsqd_tcp_address:
            return "--from, --to and --peek read over HTTP: use --nsqd-http-address"
        if bool(self.nsqd_http_address) == bool(self.lookupd_http_address):
            return "--from, --to and --peek need --nsqd-http-address or --lookupd-http-address"
        for name, value in (("from", self.from_), ("to", self.to)):
            if value in ("", BEGINNING, END) or is_offset(value):
                continue
            try:
                parse_time(value)
            except ValueError:
                return f"--{name} should be beginning, end, an offset or a time in RFC 3339"
        return ""
