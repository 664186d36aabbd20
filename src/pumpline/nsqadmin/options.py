"""The options of nsqadmin: one table for flags and the config file.

Names, defaults and config keys are NSQ's; `http_host` and `nsqd_token_file` are ours. `fault` has
NSQ's own texts of what cannot be. Resolves addresses; knows no other sockets and no files.
"""

import socket
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import ClassVar
from urllib.parse import urlsplit

from pumpline.core.text import flags
from pumpline.core.text.addresses import split_address
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import (
    BOOL,
    DURATION,
    HOSTS,
    LOG_FORMAT,
    LOG_LEVEL,
    PROCESS_FLAGS,
    STRING,
    STRINGS,
    DaemonOptions,
    Flag,
    LogFormat,
    LogLevel,
    option,
)
from pumpline.web.routes import clean_path

LISTENER = "HTTP"


@dataclass(slots=True, kw_only=True)
class NsqadminOptions(DaemonOptions):
    """What nsqadmin was told. Durations are integer nanoseconds."""

    program: ClassVar[str] = "nsqadmin"

    log_level: LogLevel = option(
        LOG_LEVEL, LogLevel.INFO, "least level that is logged: debug, info, warn, error or fatal"
    )
    log_format: LogFormat = option(LOG_FORMAT, LogFormat.TEXT, "of the log lines: text or json")
    log_prefix: str = option(STRING, "[nsqadmin] ", "text before every log line")
    http_address: str = option(STRING, "0.0.0.0:4171", "<addr>:<port> for HTTP")
    http_host: list[str] = option(
        HOSTS,
        list,
        "host name that HTTP requests may be for, beside the machine's own; others are then "
        "refused, as they are on a loopback address (repeatable, or a comma list)",
    )
    base_path: str = option(STRING, "/", "what all paths begin with")
    dev_static_dir: str = option(STRING, "", "serve the files of the page from this directory")
    graphite_url: str = option(STRING, "", "URL of Graphite")
    proxy_graphite: bool = option(BOOL, False, "pass requests for /render on to Graphite")
    statsd_prefix: str = option(
        STRING, "nsq.%s", "prefix of nsqd's keys in statsd; %s stands for the host"
    )
    statsd_counter_format: str = option(
        STRING, "stats.counters.%s.count", "how statsd writes counters; %s stands for the key"
    )
    statsd_gauge_format: str = option(
        STRING, "stats.gauges.%s", "how statsd writes gauges; %s stands for the key"
    )
    statsd_interval_ns: int = option(
        DURATION, 60 * NS_PER_S, "how often nsqds send their figures to statsd"
    )
    notification_http_endpoint: str = option(
        STRING, "", "URL that is sent every change, as a POST of JSON"
    )
    http_client_connect_timeout_ns: int = option(
        DURATION, 2 * NS_PER_S, "how long a connection to an nsqd or nsqlookupd may take"
    )
    http_client_request_timeout_ns: int = option(
        DURATION, 5 * NS_PER_S, "how long a request to an nsqd or nsqlookupd may take"
    )
    http_client_tls_insecure_skip_verify: bool = option(
        BOOL, False, "take any certificate of an nsqd or nsqlookupd"
    )
    http_client_tls_root_ca_file: str = option(
        STRING, "", "path of the authorities that certificates are checked against"
    )
    http_client_tls_cert: str = option(STRING, "", "path of the client certificate")
    http_client_tls_key: str = option(STRING, "", "path of its key")
    allow_config_from_cidr: str = option(
        STRING, "127.0.0.1/8", "CIDR from which /config may be used; empty for all"
    )
    acl_http_header: str = option(
        STRING, "X-Forwarded-User", "header in which a proxy says who the user is"
    )
    lookupd_http_address: list[str] = option(
        STRINGS,
        list,
        "HTTP address of an nsqlookupd (may be given multiple times)",
        config_key="nsqlookupd_http_addresses",
    )
    nsqd_http_address: list[str] = option(
        STRINGS,
        list,
        "HTTP address of an nsqd (may be given multiple times)",
        config_key="nsqd_http_addresses",
    )
    admin_user: list[str] = option(
        STRINGS,
        list,
        "user who may change things (may be given multiple times; none: everybody may)",
        config_key="admin_users",
    )
    nsqd_token_file: str = option(STRING, "", "path of a file with the access token for nsqds")

    def __post_init__(self) -> None:
        self.base_path = clean_path(self.base_path).rstrip("/") or "/"

    @property
    def root(self) -> str:
        """The base path without its final slash: what paths are appended to."""
        return self.base_path.rstrip("/")

    def addresses(self) -> dict[str, str]:
        """Where it listens, by the name in its log."""
        return {LISTENER: self.http_address}

    def config_network(self) -> IPv4Network | IPv6Network | None:
        """Who may use /config; None: all."""
        cidr = self.allow_config_from_cidr
        return ip_network(cidr, strict=False) if cidr else None

    def fault(self) -> str:
        if not self.nsqd_http_address and not self.lookupd_http_address:
            return "--nsqd-http-address or --lookupd-http-address required"
        if self.nsqd_http_address and self.lookupd_http_address:
            return "use --nsqd-http-address or --lookupd-http-address not both"
        if self.http_client_tls_cert and not self.http_client_tls_key:
            return "--http-client-tls-key must be specified with --http-client-tls-cert"
        if self.http_client_tls_key and not self.http_client_tls_cert:
            return "--http-client-tls-cert must be specified with --http-client-tls-key"
        return self._unresolved() or self._unreadable() or self._negative()

    def _unresolved(self) -> str:
        for name, addresses in {
            "lookupd-http-address": self.lookupd_http_address,
            "nsqd-http-address": self.nsqd_http_address,
        }.items():
            for address in addresses:
                if cause := resolve_fault(address):
                    return f"failed to resolve --{name} ({address}) - {cause}"
        return ""

    def _unreadable(self) -> str:
        url = self.graphite_url
        if url and urlsplit(url).scheme not in ("http", "https"):
            return f"failed to parse --graphite-url ({url}) - it is no http:// or https:// URL"
        try:
            self.config_network()
        except ValueError as error:
            cidr = self.allow_config_from_cidr
            return f"failed to parse --allow-config-from-cidr ({cidr}) - {error}"
        return ""

    def _negative(self) -> str:
        for name, value in {
            "http-client-connect-timeout": self.http_client_connect_timeout_ns,
            "http-client-request-timeout": self.http_client_request_timeout_ns,
            "statsd-interval": self.statsd_interval_ns,
        }.items():
            if value < 0:
                return f"--{name} must not be negative"
        return ""


def resolve_fault(address: str) -> str:
    """Why that is no address; empty if it is one."""
    try:
        host, port = split_address(address)
        socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return (isinstance(error, OSError) and error.strerror) or str(error)
    return ""


FLAGS: tuple[Flag, ...] = (*PROCESS_FLAGS, *flags.table(NsqadminOptions))
