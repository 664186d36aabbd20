"""The flags of nsq_stat, and what is wrong with their values.

Names, defaults and error texts are NSQ's; `all_channels`, `json` and `token_file` are ours, and so
is a `channel` that repeats.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import (
    BOOL,
    DURATION,
    STRING,
    STRINGS,
    Kind,
    option,
)
from pumpline.tools.tool import ToolOptions

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")  # int() also takes spaces, _ and other scripts' digits


def _parse_count(text: str) -> int:
    quoted = f'strconv.ParseInt: parsing "{text}"'
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{quoted}: invalid syntax")
    if not INT32_MIN <= int(text) <= INT32_MAX:
        raise ValueError(f"{quoted}: value out of range")
    return int(text)


def _coerce_count(value: object) -> int:
    return _parse_count(str(value))


NO_COUNT = -(1 << 63)
COUNT: Kind[int] = Kind("value", _parse_count, _coerce_count, lambda _: "")


@dataclass(slots=True, kw_only=True)
class StatOptions(ToolOptions):
    program: ClassVar[str] = "nsq_stat"

    topic: str = option(STRING, "", "topic to show")
    channel: list[str] = option(
        STRINGS, list, "channel to show (repeats: more than one is not in NSQ)"
    )
    all_channels: bool = option(BOOL, False, "show all channels of the topic (not in NSQ)")
    json: bool = option(
        BOOL, False, "print JSON lines, with rates by elapsed time and lag_seconds (not in NSQ)"
    )
    interval_ns: int = option(DURATION, 2 * NS_PER_S, "time between rows")
    count: int = option(COUNT, NO_COUNT, "rows to print, then end")
    nsqd_http_address: list[str] = option(STRINGS, list, "<addr>:<port> of an nsqd (repeats)")
    lookupd_http_address: list[str] = option(
        STRINGS, list, "<addr>:<port> of an nsqlookupd that knows the nsqds (repeats)"
    )
    http_client_connect_timeout_ns: int = option(DURATION, 2 * NS_PER_S, "time to connect")
    http_client_request_timeout_ns: int = option(DURATION, 5 * NS_PER_S, "time for an answer")
    token_file: str = option(STRING, "", "file with the access token of the nsqds (not in NSQ)")

    @property
    def rows_max(self) -> int | None:
        return None if self.count == NO_COUNT else self.count

    def fault(self) -> str:
        if not self.topic or not (any(self.channel) or self.all_channels):
            return "--topic and --channel are required"
        if self.interval_ns <= 0:
            return "--interval should be positive"
        if self.rows_max is not None and self.rows_max <= 0:
            return "--count should be positive"
        if self.http_client_connect_timeout_ns <= 0:
            return "--http-client-connect-timeout should be positive"
        if self.http_client_request_timeout_ns <= 0:
            return "--http-client-request-timeout should be positive"
        if not self.nsqd_http_address and not self.lookupd_http_address:
            return "--nsqd-http-address or --lookupd-http-address required"
        if self.nsqd_http_address and self.lookupd_http_address:
            return "use --nsqd-http-address or --lookupd-http-address not both"
        return ""
