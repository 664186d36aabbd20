"""/config: every option is told; the log level and the lookupds can be changed."""

import socket
import zlib
from collections.abc import Iterator
from hashlib import md5

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.web import JSON_TYPE, NSQ_HEADER, TEXT_TYPE, Answer, ask

S_NS = 1_000_000_000
NODE_ID = zlib.crc32(md5(socket.gethostname().encode()).digest()) % 1024

DEFAULTS: dict[str, object] = {
    "id": NODE_ID,
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "https_address": "0.0.0.0:4152",
    "broadcast_address": socket.gethostname(),
    "nsqlookupd_tcp_addresses": [],
    "auth_http_addresses": [],
    "http_client_connect_timeout": 2 * S_NS,
    "http_client_request_timeout": 5 * S_NS,
    "mem_queue_size": 10_000,
    "max_bytes_per_file": 104_857_600,
    "sync_every": 2500,
    "sync_timeout": 2 * S_NS,
    "queue_scan_worker_pool_max": 4,
    "queue_scan_selection_count": 20,
    "msg_timeout": 60 * S_NS,
    "max_msg_timeout": 900 * S_NS,
    "max_msg_size": 1_048_576,
    "max_body_size": 5_242_880,
    "max_req_timeout": 3600 * S_NS,
    "max_heartbeat_interval": 60 * S_NS,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65_536,
    "max_output_buffer_timeout": 30 * S_NS,
    "min_output_buffer_timeout": S_NS // 40,
    "output_buffer_timeout": S_NS // 4,
    "max_channel_consumers": 0,
    "statsd_address": "",
    "statsd_interval": 60 * S_NS,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_window_time": 600 * S_NS,
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": 0,
    "tls_min_version": 769,
    "deflate": True,
    "snappy": True,
    "max_deflate_level": 6,
}


def put(nsqd: Nsqd, option: str, value: bytes) -> Answer:
    return ask(nsqd, "PUT", f"/config/{option}", value)


@pytest.fixture
def running(own_nsqd: Nsqd) -> Iterator[Nsqd]:
    """A daemon of its own, for a test that changes it."""
    with own_nsqd:
        yield own_nsqd


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_are_told(nsqd: Nsqd, name: str) -> None:
    answer = ask(nsqd, "GET", f"/config/{name}")
    expected = DEFAULTS[name]
    assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"
    if isinstance(expected, str):
        assert (answer.status, answer.body.decode()) == (200, expected)
        assert answer.headers["Content-Type"] == (TEXT_TYPE if expected else None)
    else:
        assert answer.json() == expected


def test_given_options_are_told(nsqd: Nsqd) -> None:
    assert ask(nsqd, "GET", "/config/data_path").body.decode() == str(nsqd.data_path)
    assert ask(nsqd, "GET", "/config/http_address").body.decode() == nsqd.http_address
    assert ask(nsqd, "GET", "/config/broadcast_http_port").json() == nsqd.http_port
    assert ask(nsqd, "GET", "/config/broadcast_tcp_port").json() == nsqd.tcp_port
    assert ask(nsqd, "GET", "/config/e2e_processing_latency_percentiles").json() == [0.99, 0.5]


NSQD_FLAGS = ("--e2e-processing-latency-percentile=0.5,0.99",)


@pytest.mark.deviation  # newer than the release it is compared with, or ours alone
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auth_http_request_method", "get"),
        ("topology_zone", ""),
        ("enable_experiment", []),
        ("retention_time", 24 * 3600 * S_NS),
        ("retention_bytes", 256 << 20),
    ],
)
def test_further_options_are_told(nsqd: Nsqd, name: str, expected: object) -> None:
    answer = ask(nsqd, "GET", f"/config/{name}")
    told = answer.body.decode() if isinstance(expected, str) else answer.json()
    assert told == expected


@pytest.mark.parametrize(
    "name",
    ["config", "version", "verbose", "worker_id", "node_id", "log-level", "lookupd_tcp_address"],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_what_is_no_option_is_refused(nsqd: Nsqd, method: str, name: str) -> None:
    answer = ask(nsqd, method, f"/config/{name}", b"1" if method == "PUT" else None)
    assert (answer.status, answer.code) == (400, "INVALID_OPTION")


@pytest.mark.parametrize("name", ["mem_queue_size", "id", "tls_required", "max_msg_size"])
def test_other_options_cannot_be_changed(nsqd: Nsqd, name: str) -> None:
    before = ask(nsqd, "GET", f"/config/{name}").json()
    answer = put(nsqd, name, b"1")
    assert (answer.status, answer.code) == (400, "INVALID_OPTION")
    assert ask(nsqd, "GET", f"/config/{name}").json() == before


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"debug", b"1"),
        (b"DEBUG", b"1"),
        (b"info", b"2"),
        (b"Warn", b"3"),
        (b"error", b"4"),
        (b"fatal", b"5"),
    ],
)
def test_log_levels(running: Nsqd, value: bytes, told: bytes) -> None:
    answer = put(running, "log_level", value)
    assert (answer.status, answer.body) == (200, told)
    assert answer.headers["Content-Type"] == JSON_TYPE
    assert ask(running, "GET", "/config/log_level").body == told


@pytest.mark.parametrize("value", [b"loud", b"1", b'"info"', b" info", b"info\n", b"\xff"])
def test_bad_log_levels(nsqd: Nsqd, value: bytes) -> None:
    answer = put(nsqd, "log_level", value)
    assert (answer.status, answer.code) == (400, "INVALID_VALUE")
    assert ask(nsqd, "GET", "/config/log_level").body == b"2"


def test_a_log_level_counts_at_once(running: Nsqd) -> None:
    def logged(word: str) -> bool:
        assert ask(running, "GET", f"/ping?{word}").status == 200
        # Whatever is to be logged of it is, once a later request is answered.
        assert ask(running, "GET", "/stats?a=%zz").status == 400
        return f"/ping?{word} " in running.log_text()

    assert logged("first")
    assert put(running, "log_level", b"error").status == 200
    assert not logged("second")
    assert put(running, "log_level", b"info").status == 200
    assert logged("third")


@pytest.mark.parametrize("name", ["log_level", "no_such_option"])
def test_values_of_no_or_too_much_length(nsqd: Nsqd, name: str) -> None:
    for value in (b"", b"x" * 1_048_577):
        answer = put(nsqd, name, value)
        assert (answer.status, answer.code) == (413, "INVALID_VALUE")


@pytest.mark.deviation
def test_a_hundred_lookupds_are_enough(running: Nsqd) -> None:
    addresses = ",".join(['"127.0.0.1:1"'] * 101)
    answer = put(running, "nsqlookupd_tcp_addresses", f"[{addresses}]".encode())
    assert (answer.status, answer.code) == (400, "INVALID_VALUE")


def test_lookupds_can_be_changed(running: Nsqd) -> None:
    # Nothing listens on port 1.
    for addresses in (b'["127.0.0.1:1"]', b'["127.0.0.1:1","localhost:1"]', b"[]"):
        answer = put(running, "nsqlookupd_tcp_addresses", addresses)
        assert (answer.status, answer.body) == (200, addresses)
        assert ask(running, "GET", "/config/nsqlookupd_tcp_addresses").body == addresses


@pytest.mark.parametrize("value", [b"127.0.0.1:1", b"{}", b"[1]", b'["a"', b'"a"', b'["\xff"]x'])
def test_bad_lookupds(nsqd: Nsqd, value: bytes) -> None:
    answer = put(nsqd, "nsqlookupd_tcp_addresses", value)
    assert (answer.status, answer.code) == (400, "INVALID_VALUE")
    assert ask(nsqd, "GET", "/config/nsqlookupd_tcp_addresses").json() == []
