"""The options of nsqlookupd: one table for flags and the config file.

Names, defaults and config keys are NSQ's; `lost_node_timeout_ns`, `data_path`, `http_host` and
`max_connections` are ours. Knows no files and no sockets.
"""

import socket
from dataclasses import dataclass
from typing import ClassVar

from pumpline.core.text import flags
from pumpline.core.text.durations import NS_PER_HOUR, NS_PER_MIN, NS_PER_S
from pumpline.core.text.flags import (
    DURATION,
    HOSTS,
    INT,
    LOG_FORMAT,
    LOG_LEVEL,
    PROCESS_FLAGS,
    STRING,
    DaemonOptions,
    Flag,
    LogFormat,
    LogLevel,
    option,
)


@dataclass(slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """What nsqlookupd was told. Durations are integer nanoseconds."""

    program: ClassVar[str] = "nsqlookupd"

    log_level: LogLevel = option(
        LOG_LEVEL, LogLevel.INFO, "least level that is logged: debug, info, warn, error or fatal"
    )
    log_format: LogFormat = option(LOG_FORMAT, LogFormat.TEXT, "of the log lines: text or json")
    log_prefix: str = option(STRING, "[nsqlookupd] ", "text before every log line")
    tcp_address: str = option(STRING, "0.0.0.0:4160", "<addr>:<port> for nsqds to register at")
    http_address: str = option(STRING, "0.0.0.0:4161", "<addr>:<port> for HTTP")
    broadcast_address: str = option(
        STRING, socket.gethostname, "address told to nsqds; the host name if not given"
    )
    inactive_producer_timeout_ns: int = option(
        DURATION,
        5 * NS_PER_MIN,
        "time after which an nsqd not heard of is left out, and a name no nsqd has is forgotten",
    )
    tombstone_lifetime_ns: int = option(
        DURATION, 45 * NS_PER_S, "how long an nsqd is left out of lookups of a tombstoned topic"
    )
    lost_node_timeout_ns: int = option(
        DURATION,
        24 * NS_PER_HOUR,
        "how long an nsqd that went away is remembered for those who ask with lost=true; "
        "0 to remember none",
    )
    data_path: str = option(
        STRING,
        "",
        "directory of a file with the nsqds, so that they are remembered across a restart; "
        "in memory alone if not given",
    )
    http_host: list[str] = option(
        HOSTS,
        list,
        "host name that HTTP requests may be for, beside the machine's own; others are then "
        "refused, as they are on a loopback address (repeatable, or a comma list)",
    )
    max_connections: int = option(INT, 0, "most connections of nsqds; 0 for no limit")

    def addresses(self) -> dict[str, str]:
        """Where it listens, by the names in its log."""
        return {"TCP": self.tcp_address, "HTTP": self.http_address}

    def fault(self) -> str:
        for name, value in {
            "inactive-producer-timeout": self.inactive_producer_timeout_ns,
            "tombstone-lifetime": self.tombstone_lifetime_ns,
            "lost-node-timeout": self.lost_node_timeout_ns,
            "max-connections": self.max_connections,
        }.items():
            if value < 0:
                return f"--{name} must not be negative"
        if "\0" in self.data_path:
            return "--data-path must not have a zero byte"
        return ""


FLAGS: tuple[Flag, ...] = (*PROCESS_FLAGS, *flags.table(NsqlookupdOptions))
