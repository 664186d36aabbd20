"""The flags of nsq_to_http, and what is wrong with their values.

Names, defaults and error texts are NSQ's; `retry_status` and `retry_after` are ours, and so is a
`topic` that repeats.
"""

from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import BOOL, DURATION, FLOAT, INT, STRING, STRINGS, option
from pumpline.tools.host_pool import MODES
from pumpline.tools.sources import SourceOptions

CONTENT_TYPE = "application/octet-stream"


@dataclass(slots=True, kw_only=True)
class ToHttpOptions(SourceOptions):
    program: ClassVar[str] = "nsq_to_http"

    topic: list[str] = option(
        STRINGS, list, "topic to consume (repeats: more than one is not in NSQ)"
    )
    channel: str = option(STRING, "nsq_to_http", "channel to consume")
    post: list[str] = option(STRINGS, list, "URL to POST messages to (repeats)")
    get: list[str] = option(
        STRINGS, list, "URL to GET, with one %s that is replaced by the message (repeats)"
    )
    header: list[str] = option(STRINGS, list, "header of each request, as name:value (repeats)")
    content_type: str = option(STRING, CONTENT_TYPE, "Content-Type of POST requests")
    mode: str = option(STRING, "hostpool", f"which URL is next: {', '.join(MODES)}")
    n: int = option(INT, 100, "requests at a time")
    sample: float = option(FLOAT, 1.0, "part of the messages that is sent, 0 to 1")
    status_every: int = option(INT, 250, "requests between status lines; 0 for none")
    http_client_connect_timeout_ns: int = option(DURATION, 2 * NS_PER_S, "time to connect")
    http_client_request_timeout_ns: int = option(DURATION, 20 * NS_PER_S, "time for a request")
    retry_status: str = option(
        STRING,
        "",
        "statuses that are tried again, as 429,500-599; messages answered otherwise are dropped. "
        "By default all but success are tried again (not in NSQ)",
    )
    retry_after: bool = option(
        BOOL, False, "try again when the answer's Retry-After says (not in NSQ)"
    )

    @property
    def urls(self) -> list[str]:
        return self.post or self.get

    @property
    def headers(self) -> dict[str, str]:
        pairs = [each.partition(":") for each in self.header]
        return {name.strip(): value.strip() for name, _, value in pairs}

    def fault(self) -> str:
        if not any(self.topic) or not self.channel:
            return "--topic and --channel are required"
        if self.content_type != CONTENT_TYPE:
            if not self.post:
                return "--content-type only used with --post"
            if not self.content_type:
                return "--content-type requires a value when used"
        if fault := self.source_fault():
            return fault
        return self._request_fault() or self._value_fault()

    def _request_fault(self) -> str:
        if not self.get and not self.post:
            return "--get or --post required"
        if self.get and self.post:
            return "use --get or --post not both"
        if any(url.count("%s") != 1 for url in self.get):
            return "invalid GET address - must be a printf string"
        if not all(name and value for name, value in self.headers.items()):
            return "--header value format should be 'key=value'"
        return ""

    def _value_fault(self) -> str:
        if not 0.0 <= self.sample <= 1.0:
            return "ERROR: --sample must be between 0.0 and 1.0"
        if self.n < 1:
            return "no handlers"
        if self.mode not in MODES:
            return f"--mode should be one of {', '.join(MODES)}"
        for name, value in {
            "connect": self.http_client_connect_timeout_ns,
            "request": self.http_client_request_timeout_ns,
        }.items():
            if value <= 0:
                return f"--http-client-{name}-timeout should be positive"
        try:
            statuses(self.retry_status)
        except ValueError:
            return "--retry-status should be like 429,500-599"
        return ""


def statuses(text: str) -> frozenset[int]:
    """`429,500-599` as a set; ValueError if it is not like that."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if not 100 <= first <= last <= 599:
            raise ValueError(part)
        found.update(range(first, last + 1))
    return frozenset(found)
