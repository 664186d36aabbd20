"""The flags of nsq_to_nsq, and what is wrong with their values.

Names, defaults and error texts are NSQ's; `tokens`, `destination_nsqd_http_address` and
`token_file` are ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text.flags import BOOL, INT, STRING, STRINGS, option
from pumpline.core.text.names import is_valid_name
from pumpline.tools.go_nsq_options import CLIENT_OPTIONS, Given
from pumpline.tools.host_pool import MODES
from pumpline.tools.sources import SourceOptions


@dataclass(slots=True, kw_only=True)
class ToNsqOptions(SourceOptions):
    program: ClassVar[str] = "nsq_to_nsq"

    topic: list[str] = option(STRINGS, list, "topic to consume (repeats)")
    channel: str = option(STRING, "nsq_to_nsq", "channel to consume")
    destination_topic: str = option(
        STRING, "", "topic to publish to, for all topics; by default a topic's own name"
    )
    destination_nsqd_tcp_address: list[str] = option(
        STRINGS, list, "<addr>:<port> of an nsqd to publish to (repeats)"
    )
    producer_opt: list[Given] = option(
        CLIENT_OPTIONS,
        list,
        "option of the producers as go-nsq names it: name,value, or a name for true (repeats)",
    )
    mode: str = option(STRING, "hostpool", f"which destination is next: {', '.join(MODES)}")
    status_every: int = option(INT, 250, "messages between status lines; 0 for none")
    whitelist_json_field: list[str] = option(
        STRINGS, list, "of JSON messages publish only this field (repeats)"
    )
    require_json_field: str = option(STRING, "", "publish only JSON messages that have this field")
    require_json_value: str = option(
        STRING, "", "publish only JSON messages whose required field has this value"
    )
    tokens: bool = option(
        BOOL,
        False,
        "publish each message once, however often it is delivered: with publish tokens, "
        "to --destination-nsqd-http-address, a pumpline nsqd (not in NSQ)",
    )
    destination_nsqd_http_address: list[str] = option(
        STRINGS, list, "<addr>:<port> or URL of a pumpline nsqd, for --tokens (repeats; not in NSQ)"
    )
    token_file: str = option(
        STRING, "", "file with the access token of the destinations, for --tokens (not in NSQ)"
    )

    @property
    def filters(self) -> bool:
        return bool(self.whitelist_json_field or self.require_json_field)

    def fault(self) -> str:
        if not self.topic or not self.channel:
            return "--topic and --channel are required"
        if fault := self._fault_of_names():
            return fault
        if fault := self.source_fault():
            return fault
        if self.tokens:
            if not self.destination_nsqd_http_address:
                return "--tokens needs --destination-nsqd-http-address, of a pumpline nsqd"
            if self.destination_nsqd_tcp_address:
                return "use --destination-nsqd-tcp-address or --tokens not both"
        elif not self.destination_nsqd_tcp_address:
            return "--destination-nsqd-tcp-address required"
        if self.mode not in MODES:
            return f"--mode should be one of {', '.join(MODES)}"
        return ""

    def _fault_of_names(self) -> str:
        if self.destination_topic and not is_valid_name(self.destination_topic):
            return "--destination-topic is invalid"
        if not all(map(is_valid_name, self.topic)):
            return "--topic is invalid"
        return "" if is_valid_name(self.channel) else "--channel is invalid"
