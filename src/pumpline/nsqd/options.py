"""The options of nsqd: one table for flags, the config file and GET /config.

Each field of `Options` is a flag (see `pumpline.core.text.flags`). Names, defaults and config keys
are NSQ's; those from `retention_time_ns` on are ours. Validation raises the whole text of NSQ's
FATAL line. Knows no files and no sockets: whether a certificate loads or an address can be bound
is the server's affair.
"""

import hashlib
import socket
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from pumpline.core.text import flags
from pumpline.core.text.durations import NS_PER_HOUR, NS_PER_MIN, NS_PER_MS, NS_PER_S
from pumpline.core.text.flags import (
    BOOL,
    DURATION,
    FLOATS,
    HOSTS,
    INT,
    LOG_FORMAT,
    LOG_LEVEL,
    PROCESS_FLAGS,
    STRING,
    STRINGS,
    DaemonOptions,
    Flag,
    Kind,
    LogFormat,
    LogLevel,
    option,
)

NODE_ID_COUNT = 1024
LOOKUPDS_MAX = 100
KIB = 1024
MIB = 1024 * KIB
# What is published together is one batch, which must not exceed core.batches.BATCH_BYTES_MAX.
MSG_SIZE_MAX = 512 * MIB
BODY_SIZE_MAX = 128 * MIB  # of messages of a byte each, which take 5 in a body and 39 in a batch

_TLS_VERSIONS = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}
_TLS_VERSION_DEFAULT = "tls1.0"


class TlsRequired(IntEnum):
    """Who must use TLS; the numbers are what GET /config/tls_required shows."""

    NO = 0
    TCP_HTTPS = 1  # all but plain HTTP
    YES = 2


def parse_tls_required(text: str) -> TlsRequired:
    word = text.lower()
    if word == "tcp-https":
        return TlsRequired.TCP_HTTPS
    try:
        return TlsRequired.YES if BOOL.parse(word) else TlsRequired.NO
    except ValueError:
        raise ValueError(f'strconv.ParseBool: parsing "{word}": invalid syntax') from None


def parse_tls_min_version(text: str) -> int:
    word = text.lower() or _TLS_VERSION_DEFAULT
    if word not in _TLS_VERSIONS:
        raise ValueError(f'unknown tlsVersionOption "{word}"')
    return _TLS_VERSIONS[word]


def show_tls_version(number: int) -> str:
    return next(word for word, each in _TLS_VERSIONS.items() if each == number)


def default_node_id() -> int:
    """NSQ's: a hash of the host name."""
    digest = hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_ID_COUNT


TLS_REQUIRED: Kind[TlsRequired] = Kind(
    "", parse_tls_required, flags.through_text(parse_tls_required), is_boolean=True
)
TLS_VERSION: Kind[int] = Kind(
    "version", parse_tls_min_version, flags.through_text(parse_tls_min_version), show_tls_version
)


@dataclass(slots=True, kw_only=True)
class Options(DaemonOptions):
    """What nsqd was told. Durations are integer nanoseconds."""

    program: ClassVar[str] = "nsqd"

    log_level: LogLevel = option(
        LOG_LEVEL, LogLevel.INFO, "least level that is logged: debug, info, warn, error or fatal"
    )
    log_format: LogFormat = option(LOG_FORMAT, LogFormat.TEXT, "of the log lines: text or json")
    log_prefix: str = option(STRING, "[nsqd] ", "text before every log line")
    node_id: int = option(
        INT,
        default_node_id,
        "number of this node in [0,1024), as in NSQ; message ids are unique without it",
        config_key="id",
    )

    tcp_address: str = option(
        STRING, "0.0.0.0:4150", "<addr>:<port>, or path of a unix socket, for NSQ clients"
    )
    http_address: str = option(
        STRING, "0.0.0.0:4151", "<addr>:<port>, or path of a unix socket, for HTTP; empty for none"
    )
    https_address: str = option(
        STRING, "0.0.0.0:4152", "<addr>:<port> for HTTPS, served when there is a certificate"
    )
    broadcast_address: str = option(
        STRING, socket.gethostname, "address told to lookupd; the host name if not given"
    )
    broadcast_tcp_port: int = option(INT, 0, "TCP port told to lookupd; 0 for the one in use")
    broadcast_http_port: int = option(INT, 0, "HTTP port told to lookupd; 0 for the one in use")
    lookupd_tcp_address: list[str] = option(
        STRINGS,
        list,
        "<addr>:<port> of an nsqlookupd to register with (repeatable)",
        config_key="nsqlookupd_tcp_addresses",
    )
    http_client_connect_timeout_ns: int = option(
        DURATION, 2 * NS_PER_S, "limit on connecting, of HTTP requests that nsqd makes"
    )
    http_client_request_timeout_ns: int = option(
        DURATION, 5 * NS_PER_S, "limit on the whole, of HTTP requests that nsqd makes"
    )
    auth_http_address: list[str] = option(
        STRINGS,
        list,
        "<addr>:<port> or URL of an auth server; clients must then AUTH (repeatable)",
        config_key="auth_http_addresses",
    )
    auth_http_request_method: str = option(
        STRING, "get", "HTTP method of requests to the auth server: get or post"
    )
    topology_region: str = option(STRING, "", "region of this node, a group of zones")
    topology_zone: str = option(STRING, "", "zone of this node; consumers in it are preferred")
    enable_experiment: list[str] = option(
        STRINGS, list, "turn on an experiment: topology-aware-consumption (repeatable)"
    )

    data_path: str = option(STRING, "", "directory of the data; the current one if not given")
    mem_queue_size: int = option(INT, 10_000, "messages of a topic or channel kept in memory")
    max_bytes_per_file: int = option(INT, 100 * MIB, "bytes after which a log file is rolled")
    sync_every: int = option(INT, 2500, "messages of a topic after which its log is fsynced")
    sync_timeout_ns: int = option(DURATION, 2 * NS_PER_S, "time after which a log is fsynced")
    queue_scan_worker_pool_max: int = option(INT, 4, "accepted, no effect: timers need no pool")
    queue_scan_selection_count: int = option(INT, 20, "accepted, no effect: timers need no scan")

    msg_timeout_ns: int = option(
        DURATION, NS_PER_MIN, "time a consumer has to answer a message before it is requeued"
    )
    max_msg_timeout_ns: int = option(
        DURATION, 15 * NS_PER_MIN, "longest message timeout a client may ask for or touch up to"
    )
    max_msg_size: int = option(INT, MIB, "largest message in bytes")
    max_body_size: int = option(INT, 5 * MIB, "largest command body in bytes")
    max_req_timeout_ns: int = option(
        DURATION, NS_PER_HOUR, "longest delay of a requeued or deferred message"
    )
    max_heartbeat_interval_ns: int = option(
        DURATION, NS_PER_MIN, "longest heartbeat interval a client may ask for"
    )
    max_rdy_count: int = option(INT, 2500, "highest RDY count of a client")
    max_output_buffer_size: int = option(
        INT, 64 * KIB, "largest output buffer, in bytes, a client may ask for"
    )
    max_output_buffer_timeout_ns: int = option(
        DURATION, 30 * NS_PER_S, "longest time between flushes a client may ask for"
    )
    min_output_buffer_timeout_ns: int = option(
        DURATION, 25 * NS_PER_MS, "shortest time between flushes a client may ask for"
    )
    output_buffer_timeout_ns: int = option(
        DURATION, 250 * NS_PER_MS, "time between flushes to a client that asks for none"
    )
    max_channel_consumers: int = option(INT, 0, "most consumers of a channel; 0 for no limit")

    statsd_address: str = option(STRING, "", "UDP <addr>:<port> of a statsd daemon")
    statsd_interval_ns: int = option(DURATION, NS_PER_MIN, "time between pushes to statsd")
    statsd_mem_stats: bool = option(BOOL, True, "push memory and GC figures too")
    statsd_prefix: str = option(
        STRING, "nsq.%s", "text before every statsd key; %s stands for broadcast address and port"
    )
    statsd_udp_packet_size: int = option(INT, 508, "largest statsd packet in bytes")
    statsd_exclude_ephemeral: bool = option(
        BOOL, False, "push nothing about ephemeral topics and channels"
    )
    e2e_processing_latency_percentile: list[float] = option(
        FLOATS,
        list,
        "percentile of processing time to track, in (0,1] (repeatable, or a comma list)",
        config_key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        DURATION, 10 * NS_PER_MIN, "how far back those percentiles look"
    )

    tls_cert: str = option(STRING, "", "path of the certificate; with a key, turns TLS on")
    tls_key: str = option(STRING, "", "path of the certificate's key")
    tls_client_auth_policy: str = option(
        STRING, "", "require-verify: clients must show a certificate; require means the same"
    )
    tls_root_ca_file: str = option(
        STRING, "", "path of the authorities that vouch for clients and the auth server"
    )
    tls_required: TlsRequired = option(
        TLS_REQUIRED,
        TlsRequired.NO,
        "refuse clients without TLS: true, false, or tcp-https to leave plain HTTP open",
    )
    tls_min_version: int = option(
        TLS_VERSION,
        _TLS_VERSIONS[_TLS_VERSION_DEFAULT],
        "lowest TLS version: tls1.0, tls1.1, tls1.2 or tls1.3",
    )
    deflate: bool = option(BOOL, True, "let clients choose deflate compression")
    snappy: bool = option(BOOL, True, "let clients choose snappy compression")
    max_deflate_level: int = option(INT, 6, "highest deflate level of a client, 1 to 9")

    retention_time_ns: int = option(
        DURATION,
        24 * NS_PER_HOUR,
        "how long messages that every channel has finished stay readable; 0 drops them at once",
    )
    retention_bytes: int = option(
        INT,
        256 * MIB,
        "how many bytes of finished messages a topic keeps; 0 drops them at once",
    )
    hold_bytes_max: int = option(
        INT,
        10 * 1024 * MIB,
        "bytes of a topic's log that a hold may pin before it is dropped; 0 for no limit",
    )
    max_publish_tokens: int = option(
        INT,
        100_000,
        "publish tokens of a topic that are remembered, to tell repeats; 0 for none",
    )
    max_connections: int = option(INT, 0, "most client connections; 0 for no limit")
    drain_timeout_ns: int = option(
        DURATION,
        NS_PER_S,
        "how long consumers have, when nsqd stops, to finish what is in flight; 0 for no time",
    )
    http_host: list[str] = option(
        HOSTS,
        list,
        "host name that HTTP requests may be for, beside the machine's own; others are then "
        "refused, as they are on a loopback address (repeatable, or a comma list)",
    )
    http_token_file: str = option(
        STRING,
        "",
        "path of a file of tokens, one a line; HTTP requests that change anything or read messages "
        "must then show one",
    )
    http_client_ca_file: str = option(
        STRING,
        "",
        "path of the authorities whose client certificates, shown on the HTTPS port, do instead of "
        "a token",
    )
    lookupd_ping_interval_ns: int = option(
        DURATION, 15 * NS_PER_S, "time between heartbeats to an nsqlookupd"
    )

    def __post_init__(self) -> None:
        self.e2e_processing_latency_percentile.sort(reverse=True)
        if self.tls_client_auth_policy and self.tls_required is TlsRequired.NO:
            self.tls_required = TlsRequired.YES

    def addresses(self) -> dict[str, str]:
        """Where it listens, by the names in its log."""
        addresses = {"TCP": self.tcp_address}
        if self.http_address:
            addresses["HTTP"] = self.http_address
        if self.https_address and self.tls_cert and self.tls_key:
            addresses["HTTPS"] = self.https_address
        return addresses

    def fault(self) -> str:
        return _fault(self)


FLAGS: tuple[Flag, ...] = (
    *PROCESS_FLAGS,
    Flag("worker-id", BOOL, False, "deprecated, no effect: use --node-id"),
    *flags.table(Options),
)


def config_value(options: Options, name: str) -> str | bool | int | list[str] | list[float]:
    """What GET /config/<name> shows: str for raw text, else JSON. KeyError if there is none."""
    attribute, _ = flags.attribute_of(Options, name)
    value: str | bool | int | list[str] | list[float] = getattr(options, attribute)
    return int(value) if isinstance(value, IntEnum) else value


def _fault(options: Options) -> str:
    """The first thing wrong, in NSQ's words and order, then what NSQ would crash on; or empty."""
    if not 1 <= options.max_deflate_level <= 9:
        return "--max-deflate-level must be [1,9]"
    if not 0 <= options.node_id < NODE_ID_COUNT:
        return f"--node-id must be [0,{NODE_ID_COUNT})"
    if options.tls_required is not TlsRequired.NO and not (options.tls_cert or options.tls_key):
        return "cannot require TLS client connections without TLS key and cert"
    if options.auth_http_request_method not in ("get", "post"):
        return "--auth-http-request-method must be post or get"
    for percentile in options.e2e_processing_latency_percentile:
        if not 0 < percentile <= 1:
            return f"invalid E2E processing latency percentile: {percentile:g}"
    if "\0" in options.data_path:
        return "--data-path must not have a zero byte in it"
    if options.sync_timeout_ns <= 0:
        return "--sync-timeout must be over 0"
    if options.http_client_ca_file and not (options.tls_cert and options.https_address):
        return "--http-client-ca-file needs --tls-cert, --tls-key and --https-address"
    if options.statsd_address and options.statsd_interval_ns <= 0:
        return "--statsd-interval must be over 0"
    if len(options.lookupd_tcp_address) > LOOKUPDS_MAX:
        return f"at most {LOOKUPDS_MAX} --lookupd-tcp-address"
    if options.lookupd_ping_interval_ns <= 0:
        return "--lookupd-ping-interval must be over 0"
    if options.max_msg_size > MSG_SIZE_MAX:
        return f"--max-msg-size must not be over {MSG_SIZE_MAX}"
    if options.max_body_size > BODY_SIZE_MAX:
        return f"--max-body-size must not be over {BODY_SIZE_MAX}"
    sizes = {
        "mem-queue-size": options.mem_queue_size,
        "retention-time": options.retention_time_ns,
        "retention-bytes": options.retention_bytes,
        "hold-bytes-max": options.hold_bytes_max,
        "max-publish-tokens": options.max_publish_tokens,
        "max-connections": options.max_connections,
        "drain-timeout": options.drain_timeout_ns,
    }
    for name, value in sizes.items():
        if value < 0:
            return f"--{name} must not be negative"
    return ""
