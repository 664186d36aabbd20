"""nsqd's options: names, defaults, precedence and refusals are NSQ's."""

import hashlib
import json
import socket
import zlib

import pytest

from pumpline.core.messages.batches import BATCH_BYTES_MAX, FULL_BYTES
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.core.text import flags
from pumpline.core.text.flags import LogLevel, OptionsError
from pumpline.nsqd.options import (
    BODY_SIZE_MAX,
    FLAGS,
    MSG_SIZE_MAX,
    Options,
    TlsRequired,
    config_value,
)

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

NSQ_FLAGS = """
    version config log-level log-prefix verbose node-id worker-id tcp-address http-address
    https-address broadcast-address broadcast-tcp-port broadcast-http-port lookupd-tcp-address
    http-client-connect-timeout http-client-request-timeout auth-http-address
    auth-http-request-method topology-region topology-zone data-path mem-queue-size
    max-bytes-per-file sync-every sync-timeout queue-scan-worker-pool-max
    queue-scan-selection-count msg-timeout max-msg-timeout max-msg-size max-body-size
    max-req-timeout max-heartbeat-interval max-rdy-count max-output-buffer-size
    max-output-buffer-timeout min-output-buffer-timeout output-buffer-timeout
    max-channel-consumers statsd-address statsd-interval statsd-mem-stats statsd-prefix
    statsd-udp-packet-size statsd-exclude-ephemeral e2e-processing-latency-percentile
    e2e-processing-latency-window-time tls-cert tls-key tls-client-auth-policy tls-root-ca-file
    tls-required tls-min-version deflate snappy max-deflate-level enable-experiment
""".split()
OUR_FLAGS = [
    "log-format",
    "retention-time",
    "retention-bytes",
    "hold-bytes-max",
    "max-publish-tokens",
    "max-connections",
    "drain-timeout",
    "http-host",
    "http-token-file",
    "http-client-ca-file",
    "lookupd-ping-interval",
]

CONFIG_DEFAULTS = {
    "log_format": "text",
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "tcp_address": "0.0.0.0:4150",
    "http_address": "0.0.0.0:4151",
    "https_address": "0.0.0.0:4152",
    "broadcast_address": socket.gethostname(),
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    "nsqlookupd_tcp_addresses": [],
    "http_client_connect_timeout": 2 * SECOND_NS,
    "http_client_request_timeout": 5 * SECOND_NS,
    "auth_http_addresses": [],
    "auth_http_request_method": "get",
    "topology_region": "",
    "topology_zone": "",
    "enable_experiment": [],
    "data_path": "",
    "mem_queue_size": 10_000,
    "max_bytes_per_file": 104_857_600,
    "sync_every": 2500,
    "sync_timeout": 2 * SECOND_NS,
    "queue_scan_worker_pool_max": 4,
    "queue_scan_selection_count": 20,
    "msg_timeout": MINUTE_NS,
    "max_msg_timeout": 15 * MINUTE_NS,
    "max_msg_size": 1_048_576,
    "max_body_size": 5_242_880,
    "max_req_timeout": 60 * MINUTE_NS,
    "max_heartbeat_interval": MINUTE_NS,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65_536,
    "max_output_buffer_timeout": 30 * SECOND_NS,
    "min_output_buffer_timeout": SECOND_NS // 40,
    "output_buffer_timeout": SECOND_NS // 4,
    "max_channel_consumers": 0,
    "statsd_address": "",
    "statsd_interval": MINUTE_NS,
    "statsd_mem_stats": True,
    "statsd_prefix": "nsq.%s",
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_percentiles": [],
    "e2e_processing_latency_window_time": 10 * MINUTE_NS,
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": 0,
    "tls_min_version": 769,
    "deflate": True,
    "snappy": True,
    "max_deflate_level": 6,
    "retention_time": 24 * 60 * MINUTE_NS,
    "retention_bytes": 268_435_456,
    "lookupd_ping_interval": 15_000_000_000,
    "hold_bytes_max": 10 << 30,
    "max_publish_tokens": 100000,
    "max_connections": 0,
    "drain_timeout": SECOND_NS,
    "http_host": [],
    "http_token_file": "",
    "http_client_ca_file": "",
}


def options_of(*argv: str, **config: object) -> Options:
    return Options.from_sources(flags.parse(FLAGS, argv).values, config)


def test_the_table_has_every_nsq_flag_and_ours() -> None:
    assert sorted(flag.name for flag in FLAGS) == sorted(NSQ_FLAGS + OUR_FLAGS)


def test_defaults_are_nsqs() -> None:
    options = options_of()
    shown = {key: config_value(options, key) for key in CONFIG_DEFAULTS}
    assert shown == CONFIG_DEFAULTS
    assert options == Options()


def test_every_option_can_be_shown_as_text_or_json() -> None:
    options = options_of()
    process_flags = {"config", "version", "verbose", "worker-id"}
    keys = {flag.key for flag in FLAGS if flag.name not in process_flags}
    assert keys == {*CONFIG_DEFAULTS, "id"}
    assert json.loads(json.dumps({key: config_value(options, key) for key in keys}))


@pytest.mark.parametrize(
    "name", ["config", "version", "verbose", "worker_id", "node_id", "lookupd_tcp_address", "x", ""]
)
def test_what_is_no_option_cannot_be_shown(name: str) -> None:
    with pytest.raises(KeyError):
        config_value(Options(), name)


def test_the_default_node_id_is_a_hash_of_the_host_name() -> None:
    digest = hashlib.md5(socket.gethostname().encode()).digest()
    assert config_value(Options(), "id") == zlib.crc32(digest) % 1024


def test_durations_are_held_in_nanoseconds() -> None:
    assert options_of("--msg-timeout=1500ms").msg_timeout_ns == 1_500_000_000
    assert options_of(msg_timeout="5s").msg_timeout_ns == 5_000_000_000
    assert options_of(msg_timeout=5000).msg_timeout_ns == 5_000_000_000


def test_flags_win_over_the_config_file() -> None:
    options = options_of("--node-id=7", id=8, mem_queue_size=5, nonsense="ignored")
    assert (options.node_id, options.mem_queue_size) == (7, 5)


def test_lists_come_from_repeated_flags_or_from_the_config_file() -> None:
    options = options_of("--lookupd-tcp-address=a:1", "--lookupd-tcp-address=b:2")
    assert options.lookupd_tcp_address == ["a:1", "b:2"]
    assert options_of(nsqlookupd_tcp_addresses="a:1,b:2").lookupd_tcp_address == ["a:1", "b:2"]
    assert options_of(auth_http_addresses=["a:1"]).auth_http_address == ["a:1"]


def test_percentiles_are_sorted_from_the_highest() -> None:
    flag = "--e2e-processing-latency-percentile"
    assert options_of(f"{flag}=0.5,0.99", f"{flag}=0.9").e2e_processing_latency_percentile == [
        0.99,
        0.9,
        0.5,
    ]
    options = options_of(e2e_processing_latency_percentiles=[0.5, 1.0])
    assert options.e2e_processing_latency_percentile == [1.0, 0.5]


@pytest.mark.parametrize(
    ("argv", "config", "required"),
    [
        (["--tls-required"], {}, TlsRequired.YES),
        (["--tls-required=false"], {"tls_required": True}, TlsRequired.NO),
        (["--tls-required=TCP-HTTPS"], {}, TlsRequired.TCP_HTTPS),
        ([], {"tls_required": True}, TlsRequired.YES),
        ([], {"tls_required": "true"}, TlsRequired.YES),
        ([], {"tls_required": "tcp-https"}, TlsRequired.TCP_HTTPS),
        (["--tls-client-auth-policy=require"], {}, TlsRequired.YES),
        (
            ["--tls-client-auth-policy=require", "--tls-required=tcp-https"],
            {},
            TlsRequired.TCP_HTTPS,
        ),
    ],
)
def test_tls_can_be_required_of_all_or_of_all_but_http(
    argv: list[str], config: dict[str, object], required: TlsRequired
) -> None:
    options = options_of("--tls-cert=c", "--tls-key=k", *argv, **config)
    assert options.tls_required is required


@pytest.mark.parametrize(
    ("text", "number"), [("tls1.0", 769), ("TLS1.1", 770), ("tls1.2", 771), ("tls1.3", 772)]
)
def test_tls_versions_have_their_wire_numbers(text: str, number: int) -> None:
    assert options_of(f"--tls-min-version={text}").tls_min_version == number
    assert options_of(tls_min_version=text).tls_min_version == number


def test_an_empty_tls_version_keeps_the_default() -> None:
    assert options_of("--tls-min-version=").tls_min_version == 769
    assert options_of(tls_min_version="").tls_min_version == 769


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "--tls-required=foo",
            'invalid boolean value "foo" for -tls-required: '
            'strconv.ParseBool: parsing "foo": invalid syntax',
        ),
        (
            "--tls-min-version=ssl3.0",
            'invalid value "ssl3.0" for flag -tls-min-version: unknown tlsVersionOption "ssl3.0"',
        ),
        ("--worker-id=5", 'invalid boolean value "5" for -worker-id: parse error'),
    ],
)
def test_flags_of_nsqds_own_kinds_are_refused_in_its_words(argv: str, message: str) -> None:
    with pytest.raises(flags.FlagError) as caught:
        options_of(argv)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("argv", "config", "cause"),
    [
        ("--max-deflate-level=0", {}, "--max-deflate-level must be [1,9]"),
        ("--max-deflate-level=10", {}, "--max-deflate-level must be [1,9]"),
        ("--node-id=-1", {}, "--node-id must be [0,1024)"),
        ("", {"id": 1024}, "--node-id must be [0,1024)"),
        (
            "--tls-required",
            {},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            "--tls-client-auth-policy=require",
            {},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            "--auth-http-request-method=put",
            {},
            "--auth-http-request-method must be post or get",
        ),
        (
            "--e2e-processing-latency-percentile=0.5,2",
            {},
            "invalid E2E processing latency percentile: 2",
        ),
        (
            "",
            {"e2e_processing_latency_percentiles": [0.0]},
            "invalid E2E processing latency percentile: 0",
        ),
        ("--sync-timeout=0s", {}, "--sync-timeout must be over 0"),
        ("--mem-queue-size=-1", {}, "--mem-queue-size must not be negative"),
        ("--retention-time=-1s", {}, "--retention-time must not be negative"),
        ("--retention-bytes=-1", {}, "--retention-bytes must not be negative"),
        ("--hold-bytes-max=-1", {}, "--hold-bytes-max must not be negative"),
        ("--max-connections=-1", {}, "--max-connections must not be negative"),
        ("--max-publish-tokens=-1", {}, "--max-publish-tokens must not be negative"),
        (
            "--max-rdy-count=1",
            {"nsqlookupd_tcp_addresses": ["a:1"] * 101},
            "at most 100 --lookupd-tcp-address",
        ),
        ("--lookupd-ping-interval=0s", {}, "--lookupd-ping-interval must be over 0"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_fatal_text(
    argv: str, config: dict[str, object], cause: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        options_of(*argv.split(), **config)
    assert str(caught.value) == f"failed to instantiate nsqd - {cause}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tls_required": "bogus"}, "failed parsing tls_required bogus"),
        ({"tls_min_version": "tls1.9"}, "failed parsing tls_min_version tls1.9"),
        ({"tls_min_version": 3}, "failed parsing tls_min_version 3"),
        ({"log_level": "x"}, "failed parsing log_level x"),
        ({"max_rdy_count": 3.5}, "failed parsing max_rdy_count 3.5 - not an integer"),
    ],
)
def test_config_values_that_cannot_be_read_are_refused_with_the_fatal_text(
    config: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        options_of(**config)
    assert str(caught.value) == message


def test_log_levels_are_words_in_and_numbers_out() -> None:
    options = options_of("--log-level=Warn")
    assert options.log_level is LogLevel.WARN
    assert config_value(options, "log_level") == 3


@pytest.mark.parametrize("flag", ["max-msg-size", "max-body-size"])
def test_what_is_published_together_fits_a_batch(flag: str) -> None:
    most = {"max-msg-size": MSG_SIZE_MAX, "max-body-size": BODY_SIZE_MAX}[flag]
    options_of(f"--{flag}={most}")
    with pytest.raises(OptionsError, match=f"--{flag} must not be over {most}"):
        options_of(f"--{flag}={most + 1}")
    # A batch is open for more until it has a mebibyte; all may be messages of one byte.
    overhead_bytes = MESSAGE_OVERHEAD_BYTES + 4
    open_bytes = FULL_BYTES * 2
    assert MSG_SIZE_MAX + overhead_bytes + open_bytes < BATCH_BYTES_MAX
    assert BODY_SIZE_MAX // 5 * (1 + overhead_bytes) + open_bytes < BATCH_BYTES_MAX
