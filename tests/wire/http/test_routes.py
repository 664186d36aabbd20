"""The HTTP door as such: routes, methods, redirects, errors, listeners; /ping and /info."""

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act, await_topic, topic_stats
from tests.kit.wire.session import Connect
from tests.kit.wire.web import (
    JSON_TYPE,
    NSQ_HEADER,
    TEXT_TYPE,
    UnixConnection,
    ask,
    ask_on,
    open_connection,
    read_to_end,
    send_raw,
)

GET_PATHS = ["/ping", "/info", "/stats", "/debug/pprof/", "/debug/pprof/cmdline"]
TOPIC_VERBS = ["create", "delete", "empty", "pause", "unpause"]
POST_PATHS = [
    "/pub",
    "/mpub",
    *(f"/topic/{verb}" for verb in TOPIC_VERBS),
    *(f"/channel/{verb}" for verb in TOPIC_VERBS),
    "/debug/freememory",
]


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/nope",
        "/topic",
        "/topic/rename",
        "/config",
        "/config/",
        "/config/log_level/more",
        "/put?topic=t",
        "/mput?topic=t",
        "/create_topic?topic=t",
        "/delete_topic?topic=t",
        "/empty_topic?topic=t",
        "/create_channel?topic=t&channel=c",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
def test_unknown_paths_are_not_found(nsqd: Nsqd, method: str, target: str) -> None:
    answer = ask(nsqd, method, target, b"x" if method == "POST" else None)
    assert (answer.status, answer.code) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        *((path, "GET, OPTIONS") for path in GET_PATHS),
        *((path, "OPTIONS, POST") for path in POST_PATHS),
        ("/config/log_level", "GET, OPTIONS, PUT"),
        ("/config/no_such_option", "GET, OPTIONS, PUT"),
    ],
)
def test_other_methods_are_refused_and_options_listed(nsqd: Nsqd, path: str, allowed: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        if method not in allowed:
            answer = ask(nsqd, method, path)
            assert (answer.status, answer.code) == (405, "METHOD_NOT_ALLOWED")
            assert answer.headers["Allow"] == allowed
    head = ask(nsqd, "HEAD", path)
    assert (head.status, head.headers["Allow"], head.body) == (405, allowed, b"")
    options = ask(nsqd, "OPTIONS", path)
    assert (options.status, options.headers["Allow"], options.body) == (200, allowed, b"")


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/PING", 301, "/ping"),
        ("GET", "//ping", 301, "/ping"),
        ("GET", "/./ping", 301, "/ping"),
        ("GET", "/a/../ping", 301, "/ping"),
        ("GET", "/Stats/?format=json&topic=%41", 301, "/stats?format=json&topic=%41"),
        ("GET", "/debug/pprof", 301, "/debug/pprof/"),
        ("GET", "/config/log_level/", 301, "/config/log_level"),
        ("GET", "/CONFIG/Log_Level", 301, "/config/Log_Level"),
        ("POST", "/pub/?topic=t", 307, "/pub?topic=t"),
        ("POST", "/Topic/Create?topic=T", 307, "/topic/create?topic=T"),
        ("PUT", "/config//log_level", 307, "/config/log_level"),
    ],
)
def test_paths_almost_right_are_redirected(
    nsqd: Nsqd, method: str, target: str, status: int, location: str
) -> None:
    answer = ask(nsqd, method, target)
    assert (answer.status, answer.headers["Location"]) == (status, location)


@pytest.mark.parametrize(("method", "target"), [("HEAD", "/ping/"), ("DELETE", "/PING")])
def test_methods_without_routes_are_not_redirected(nsqd: Nsqd, method: str, target: str) -> None:
    assert ask(nsqd, method, target).status == 404


def test_escapes_in_the_path_are_resolved(nsqd: Nsqd) -> None:
    assert ask(nsqd, "GET", "/pin%67").body == b"OK"
    assert ask(nsqd, "GET", "/pin%zz").status == 400


@pytest.mark.parametrize("query", ["topic=%zz", "topic=%4", "topic=t%", "a;b=1", "topic=t;"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/stats"), *(("POST", path) for path in POST_PATHS if "/debug" not in path)],
)
def test_malformed_query_is_refused(nsqd: Nsqd, method: str, path: str, query: str) -> None:
    answer = ask(nsqd, method, f"{path}?{query}", b"x")
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_the_first_of_several_values_counts(nsqd: Nsqd, topic: str) -> None:
    act_target = f"/topic/create?topic={topic}&topic={topic}-second"
    assert ask(nsqd, "POST", act_target).status == 200
    assert topic_stats(nsqd, topic)
    assert not topic_stats(nsqd, f"{topic}-second")


def test_names_are_unescaped(nsqd: Nsqd, topic: str) -> None:
    assert ask(nsqd, "POST", f"/topic/create?topic={topic}%23ephemeral").status == 200
    assert topic_stats(nsqd, f"{topic}#ephemeral")["topic_name"] == f"{topic}#ephemeral"


def test_parameters_in_a_form_body_do_not_count(nsqd: Nsqd, topic: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = ask(nsqd, "POST", "/topic/create", f"topic={topic}".encode(), headers=form)
    assert (answer.status, answer.code) == (400, "MISSING_ARG_TOPIC")


def test_success_without_data_is_empty(nsqd: Nsqd, topic: str) -> None:
    answer = ask(nsqd, "POST", f"/topic/create?topic={topic}")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == "0"
    assert answer.headers["Content-Type"] is None
    assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"


MISSING_TOPIC = (400, "MISSING_ARG_TOPIC")
NO_TOPIC = (404, "TOPIC_NOT_FOUND")
LONG_NAME = "x" * 65


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        *((f"/topic/{verb}", "", MISSING_TOPIC) for verb in TOPIC_VERBS),
        *((f"/topic/{verb}", "channel=c", MISSING_TOPIC) for verb in TOPIC_VERBS),
        *(
            (f"/topic/{verb}", f"topic={name}", (400, "INVALID_TOPIC"))
            for verb in ("create", "empty")
            for name in ("", "a%20b", "%23ephemeral", LONG_NAME, "%ff", "t%0a")
        ),
        *(
            (f"/topic/{verb}", f"topic={name}", NO_TOPIC)
            for verb in ("delete", "pause", "unpause")
            for name in ("", "a%20b", LONG_NAME, "no-such-topic")
        ),
        ("/topic/empty", "topic=no-such-topic", NO_TOPIC),
        *((f"/channel/{verb}", "channel=c", MISSING_TOPIC) for verb in TOPIC_VERBS),
        *(
            (f"/channel/{verb}", f"topic={LONG_NAME}", (400, "INVALID_ARG_TOPIC"))
            for verb in TOPIC_VERBS
        ),
        *((f"/channel/{verb}", "topic=t", (400, "MISSING_ARG_CHANNEL")) for verb in TOPIC_VERBS),
        *(
            (f"/channel/{verb}", "topic=t&channel=a%20b", (400, "INVALID_ARG_CHANNEL"))
            for verb in TOPIC_VERBS
        ),
        *((f"/channel/{verb}", "topic=no-such-topic&channel=c", NO_TOPIC) for verb in TOPIC_VERBS),
    ],
)
def test_admin_errors(nsqd: Nsqd, path: str, query: str, expected: tuple[int, str]) -> None:
    answer = ask(nsqd, "POST", f"{path}?{query}")
    assert (answer.status, answer.code) == expected
    assert not topic_stats(nsqd, "no-such-topic")


@pytest.mark.parametrize("verb", ["delete", "empty", "pause", "unpause"])
def test_unknown_channel(nsqd: Nsqd, topic: str, verb: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    answer = ask(nsqd, "POST", f"/channel/{verb}?topic={topic}&channel=c")
    assert (answer.status, answer.code) == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("verb", TOPIC_VERBS)
def test_admin_actions_may_be_repeated(nsqd: Nsqd, topic: str, verb: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="c")
    again = 404 if verb == "delete" else 200
    for target in (f"/channel/{verb}?topic={topic}&channel=c", f"/topic/{verb}?topic={topic}"):
        assert ask(nsqd, "POST", target).status == 200
        assert ask(nsqd, "POST", target).status == again


def test_pauses_are_on_disk_when_they_are_answered(nsqd: Nsqd, topic: str) -> None:
    def paused() -> tuple[bool, bool]:
        metadata = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
        found = next(each for each in metadata["topics"] if each["name"] == topic)
        return found["paused"], found["channels"][0]["paused"]

    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="c")
    act(nsqd, "/topic/pause", topic=topic)
    assert paused() == (True, False)
    act(nsqd, "/channel/pause", topic=topic, channel="c")
    assert paused() == (True, True)
    act(nsqd, "/topic/unpause", topic=topic)
    act(nsqd, "/channel/unpause", topic=topic, channel="c")
    assert paused() == (False, False)


def test_ping(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["Content-Type"] == TEXT_TYPE
    assert answer.headers[NSQ_HEADER] is None


TOPOLOGY = ["topology_zone", "topology_region"]
INFO_KEYS = [
    "version",
    "broadcast_address",
    "hostname",
    "http_port",
    "tcp_port",
    "start_time",
    "max_heartbeat_interval",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "max_deflate_level",
]


def test_info(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/info")
    info = answer.json()
    assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"
    assert [key for key in info if key not in TOPOLOGY] == INFO_KEYS
    assert info["version"] == "1.3.0"
    assert info["hostname"] == info["broadcast_address"] == socket.gethostname()
    assert (info["tcp_port"], info["http_port"]) == (nsqd.tcp_port, nsqd.http_port)
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_size"] == 65_536
    assert info["max_output_buffer_timeout"] == 30_000_000_000
    assert info["max_deflate_level"] == 6


@pytest.mark.deviation  # newer than the release it is compared with
def test_info_tells_the_topology(tmp_path: Path) -> None:
    flags = ["--topology-zone=z1", "--topology-region=r1", "--broadcast-address=me"]
    with Nsqd(tmp_path / "data", flags) as daemon:
        info = ask(daemon, "GET", "/info").json()
    assert list(info) == INFO_KEYS + TOPOLOGY
    assert (info["topology_zone"], info["topology_region"]) == ("z1", "r1")
    assert info["broadcast_address"] == "me"


def test_requests_are_logged_but_for_publishes(nsqd: Nsqd, topic: str) -> None:
    connection = open_connection(nsqd)
    assert ask_on(connection, "POST", f"/pub?topic={topic}", b"x").status == 200
    assert ask_on(connection, "POST", f"/mpub?topic={topic}", b"x").status == 200
    assert ask_on(connection, "POST", f"/mpub?topic={topic}&binary=1", b"x").status == 413
    assert ask_on(connection, "GET", f"/ping?of={topic}").status == 200
    assert ask_on(connection, "POST", f"/topic/create?of={topic}").status == 400
    assert ask_on(connection, "GET", f"/nope?of={topic}").status == 404
    port = connection.sock.getsockname()[1]
    connection.close()
    line = re.compile(rf" INFO: (\d+ [A-Z]+ \S*{topic}\S*) \(127\.0\.0\.1:{port}\) [\d.]+[nµm]?s\n")
    wait_until(lambda: len(line.findall(nsqd.log_text())) >= 3)  # they are written in batches
    assert line.findall(nsqd.log_text()) == [
        f"200 GET /ping?of={topic}",
        f"400 POST /topic/create?of={topic}",
        f"404 GET /nope?of={topic}",
    ]


def test_a_connection_serves_many_requests(nsqd: Nsqd, topic: str) -> None:
    connection = open_connection(nsqd)
    assert ask_on(connection, "GET", "/ping").status == 200
    first = connection.sock
    assert ask_on(connection, "POST", "/topic/create", b"a body that nobody reads").status == 400
    for _ in range(3):
        assert ask_on(connection, "POST", f"/pub?topic={topic}", b"x").body == b"OK"
    assert connection.sock is first
    connection.close()
    await_topic(nsqd, topic, message_count=3)


def test_pipelined_requests_are_answered_in_order(nsqd: Nsqd) -> None:
    ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    nope = b"GET /nope HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = read_to_end(send_raw(nsqd, ping * 3 + nope))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"200", b"200", b"200", b"404"]


def test_http_1_0_is_answered_and_closed(nsqd: Nsqd) -> None:
    answer = read_to_end(send_raw(nsqd, b"GET /ping HTTP/1.0\r\n\r\n"))
    assert b" 200 OK\r\n" in answer
    assert answer.endswith(b"\r\n\r\nOK")


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"  V2SUB a b\n\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    ],
)
def test_what_is_no_http_is_refused_and_hurts_nobody(nsqd: Nsqd, head: bytes) -> None:
    answer = read_to_end(send_raw(nsqd, head))
    assert re.match(rb"HTTP/1\.[01] 400 ", answer), answer
    assert ask(nsqd, "GET", "/ping").status == 200


@pytest.mark.deviation  # the original takes a megabyte of headers
def test_large_heads_are_refused(nsqd: Nsqd) -> None:
    head = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n"
    answer = read_to_end(send_raw(nsqd, head))
    assert answer.startswith(b"HTTP/1.1 431 "), answer


def test_unknown_expectations_are_refused(nsqd: Nsqd) -> None:
    assert ask(nsqd, "GET", "/ping", headers={"Expect": "a miracle"}).status == 417


class SilentNsqd(Nsqd):
    """Without HTTP, or with it on a socket file: no port to be found in the log."""

    def listening_port(self, service: str) -> int:
        return 0 if service == "HTTP" else super().listening_port(service)


def test_an_empty_address_turns_http_off(tmp_path: Path, connect: Connect, topic: str) -> None:
    with SilentNsqd(tmp_path / "data", ["--http-address="]) as daemon:
        connect(daemon).publish(topic, b"x")
        assert daemon.stop() == 0
        assert "HTTP: listening" not in daemon.log_text()


def test_http_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with SilentNsqd(tmp_path / "data", [f"--http-address={path}"]) as daemon:
        wait_until(path.exists)
        connection = UnixConnection(path)
        info = ask_on(connection, "GET", "/info").json()
        assert (info["http_port"], info["tcp_port"]) == (-1, daemon.tcp_port)
        assert ask_on(connection, "POST", "/pub?topic=t", b"x").body == b"OK"
        connection.close()
        assert daemon.stop() == 0


def test_an_address_in_use_stops_the_start(nsqd: Nsqd, own_nsqd: Nsqd) -> None:
    with pytest.raises(AssertionError, match="ended with 1"):
        own_nsqd.start(http_port=nsqd.http_port)
    text = f"failed to instantiate nsqd - listen (127.0.0.1:{nsqd.http_port}) failed - "
    assert text in own_nsqd.log_text()


def test_stopping_ends_idle_connections(own_nsqd: Nsqd) -> None:
    own_nsqd.start()
    connection = open_connection(own_nsqd)
    assert ask_on(connection, "GET", "/ping").status == 200
    assert own_nsqd.stop() == 0
    assert connection.sock.recv(1) == b""
    connection.close()


@pytest.fixture(scope="module")
def tls_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("certificate")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subprocess.run(
        [*request.split(), "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return [f"--tls-cert={certificate}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]


@pytest.mark.parametrize("target", ["/ping", "/nope", "/pub?topic=t"])
def test_plain_http_refuses_everything_where_tls_is_required(
    tmp_path: Path, tls_flags: list[str], target: str
) -> None:
    with Nsqd(tmp_path / "data", ["--tls-required", *tls_flags]) as daemon:
        answer = ask(daemon, "POST", target, b"x")
        assert answer.status == 403
        assert re.fullmatch(rb'{"message": "TLS_REQUIRED", "https_port": \d+}', answer.body)
        assert answer.headers["Content-Type"] == JSON_TYPE
        assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"


def test_plain_http_can_be_left_open(tmp_path: Path, tls_flags: list[str]) -> None:
    with Nsqd(tmp_path / "data", ["--tls-required=tcp-https", *tls_flags]) as daemon:
        assert ask(daemon, "GET", "/ping").body == b"OK"
