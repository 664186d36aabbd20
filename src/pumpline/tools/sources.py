"""Where the tools consume from: the flags that they share, and the consumers made of them.

Knows the flags and pumpline.client; must not know what a tool does with messages.
"""

from dataclasses import dataclass, replace

from pumpline import __version__
from pumpline.client import ConnectError, Consumer, PumplineError, Settings
from pumpline.client.connection.connection import NsqdConnection
from pumpline.core.text.flags import INT, STRINGS, option
from pumpline.core.text.names import is_valid_name
from pumpline.tools.go_nsq_options import (
    CLIENT_OPTIONS,
    Given,
    attempts_max,
    client_settings,
)
from pumpline.tools.tool import ToolFailure, ToolOptions

GO_NSQ_MAX_ATTEMPTS = 5


@dataclass(slots=True, kw_only=True)
class SourceOptions(ToolOptions):
    """Flags of every tool that consumes."""

    consumer_opt: list[Given] = option(
        CLIENT_OPTIONS,
        list,
        "option of the consumer as go-nsq names it: name,value, or a name for true (repeats)",
    )
    lookupd_http_address: list[str] = option(
        STRINGS, list, "<addr>:<port> or URL of an nsqlookupd to ask for nsqds (repeats)"
    )
    nsqd_tcp_address: list[str] = option(
        STRINGS, list, "<addr>:<port> of an nsqd to consume from (repeats)"
    )
    max_in_flight: int = option(INT, 200, "messages that may be in flight at a time")

    def source_fault(self) -> str:
        if not self.nsqd_tcp_address and not self.lookupd_http_address:
            return "--nsqd-tcp-address or --lookupd-http-address required"
        if self.nsqd_tcp_address and self.lookupd_http_address:
            return "use --nsqd-tcp-address or --lookupd-http-address not both"
        return ""

    def new_consumer(
        self,
        topic: str,
        channel: str,
        *,
        auto_touch: bool = False,
        default_attempts_max: int = GO_NSQ_MAX_ATTEMPTS,
        reconnect_if_named: bool = False,
    ) -> Consumer:
        for kind, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ToolFailure(f"invalid {kind} name")
        try:
            return Consumer(
                topic,
                channel,
                nsqd=self.nsqd_tcp_address,
                lookupd=self.lookupd_http_address,
                max_in_flight=self.max_in_flight,
                max_attempts=attempts_max(self.consumer_opt, default_attempts_max),
                giving_up="drop",  # as go-nsq does
                auto_touch=auto_touch,
                settings=replace(self._settings(), reconnect_if_named=reconnect_if_named),
            )
        except ValueError as error:
            raise ToolFailure(str(error)) from None

    async def check_nsqds(self) -> None:
        """Fail, as NSQ's tools do, if an nsqd that was named does not answer as one at the start.
        Later a consumer waits for it."""
        try:
            settings = self._settings()
            for address in self.nsqd_tcp_address:
                connection = await NsqdConnection.open(address, settings)
                await connection.close()
        except ConnectError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, PumplineError):
                raise ToolFailure(dial_fault(address, cause)) from None
            raise ToolFailure(str(error)) from None
        except ValueError as error:
            raise ToolFailure(str(error)) from None

    def _settings(self) -> Settings:
        return client_settings(self.consumer_opt, user_agent=user_agent(self.program))


def user_agent(program: str) -> str:
    return f"{program}/pumpline-{__version__}"


def dial_fault(address: str, error: OSError) -> str:
    """As Go says it."""
    if isinstance(error, TimeoutError):
        return f"dial tcp {address}: i/o timeout"
    if isinstance(error, ConnectionRefusedError):
        return f"dial tcp {address}: connect: connection refused"
    return f"dial tcp {address}: {(error.strerror or str(error)).lower()}"
