"""The options of nsqlookupd: one table for flags and the config file.

Names, defaults and config keys are NSQ's; `max_connections` is ours. Knows no files and no sockets.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumpline.core import flags
from pumpline.core.durations import NS_PER_MIN, NS_PER_S
from pumpline.core.flags import BOOL, DURATION, INT, LOG_LEVEL, STRING, Flag, LogLevel, option


class OptionsError(Exception):
    """The options cannot be used; the text is that of the FATAL log line."""


@dataclass(slots=True, kw_only=True)
class Options:
    """What nsqlookupd was told. Durations are integer nanoseconds."""

    log_level: LogLevel = option(
        LOG_LEVEL, LogLevel.INFO, "least level that is logged: debug, info, warn, error or fatal"
    )
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
    max_connections: int = option(INT, 0, "most connections of nsqds; 0 for no limit")

    @classmethod
    def from_sources(
        cls, argv_values: Mapping[str, Any], config: Mapping[str, object]
    ) -> "Options":
        """Flags (by name) over the config file (as TOML gave it) over defaults; OptionsError."""
        try:
            options = flags.build(cls, argv_values, config)
        except flags.ConfigError as error:
            raise OptionsError(str(error)) from None
        for name, value in {
            "inactive-producer-timeout": options.inactive_producer_timeout_ns,
            "tombstone-lifetime": options.tombstone_lifetime_ns,
            "max-connections": options.max_connections,
        }.items():
            if value < 0:
                raise OptionsError(
                    f"failed to instantiate nsqlookupd - --{name} must not be negative"
                )
        return options


PROCESS_FLAGS = (
    Flag("config", STRING, "", "path of a TOML config file"),
    Flag("version", BOOL, False, "print the version and exit"),
    Flag("verbose", BOOL, False, "deprecated, no effect: use --log-level"),
)
"""Flags that are no options: not in the config file."""

FLAGS: tuple[Flag, ...] = (*PROCESS_FLAGS, *flags.table(Options))
