"""The flags of to_nsq, and what is wrong with their values.

Names, defaults and error texts are NSQ's; `spread`, `token`, `nsqd_http_address` and `token_file`
are ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.messages.publish_tokens import is_valid_token
from pumpline.core.text.flags import BOOL, INT, STRING, STRINGS, option
from pumpline.core.text.names import is_valid_name
from pumpline.tools.go_nsq_options import CLIENT_OPTIONS, Given
from pumpline.tools.tool import ToolOptions

TOKEN_CHARS_MAX = 48  # the number of a batch is added


@dataclass(slots=True, kw_only=True)
class FromStdinOptions(ToolOptions):
    program: ClassVar[str] = "to_nsq"

    topic: str = option(STRING, "", "topic to publish to")
    delimiter: str = option(STRING, "\n", "the byte that ends a message")
    nsqd_tcp_address: list[str] = option(
        STRINGS, list, "<addr>:<port> of an nsqd to publish to (repeats; each gets all messages)"
    )
    rate: int = option(INT, 0, "most messages a second; 0 for no limit")
    producer_opt: list[Given] = option(
        CLIENT_OPTIONS,
        list,
        "option of the producers as go-nsq names it: name,value, or a name for true (repeats)",
    )
    spread: bool = option(
        BOOL, False, "publish each message to one of the nsqds, not to all (not in NSQ)"
    )
    token: str = option(
        STRING,
        "",
        "a name for this input: run again with the same input and name, nothing is published "
        "twice; needs --nsqd-http-address (not in NSQ)",
    )
    nsqd_http_address: list[str] = option(
        STRINGS, list, "<addr>:<port> or URL of a pumpline nsqd, for --token (repeats; not in NSQ)"
    )
    token_file: str = option(
        STRING, "", "file with the access token of the nsqds, for --token (not in NSQ)"
    )

    @property
    def separator(self) -> bytes:
        return self.delimiter.encode("utf-8", "surrogateescape")

    def fault(self) -> str:
        if not self.topic:
            return "--topic required"
        if len(self.separator) != 1:
            return "--delimiter must be a single byte"
        if self.token:
            if len(self.token) > TOKEN_CHARS_MAX or not is_valid_token(self.token):
                return f"--token should be 1-{TOKEN_CHARS_MAX} characters of A-Z a-z 0-9 . _ : -"
            if not self.nsqd_http_address:
                return "--token needs --nsqd-http-address, of a pumpline nsqd"
        elif not self.nsqd_tcp_address:
            return "--nsqd-tcp-address required"
        if not is_valid_name(self.topic):
            return f"invalid topic name {self.topic}"
        return ""
