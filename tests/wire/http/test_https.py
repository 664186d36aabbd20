"""HTTPS: when there is a listener for it, whom it serves, and what plain HTTP says then."""

import http.client
import json
import ssl
from pathlib import Path

import pytest

from tests.kit.certificates import Authority, Identity, client_context
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd
from tests.kit.wire.upgraded import secure_nsqd
from tests.kit.wire.web import JSON_TYPE, NSQ_HEADER, Answer, ask, ask_on


def ask_secure(
    nsqd: Nsqd, method: str, target: str, body: bytes | None = None, *, tls: ssl.SSLContext
) -> Answer:
    port = nsqd.listening_port("HTTPS")
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=IO_TIMEOUT_S, context=tls)
    try:
        return ask_on(connection, method, target, body)
    finally:
        connection.close()


def test_both_doors_lead_to_the_same(
    authority: Authority, server: Identity, tmp_path: Path
) -> None:
    tls = client_context(authority=authority)
    body = bytes(range(256)) * 4000
    with secure_nsqd(tmp_path, server) as nsqd:
        assert ask_secure(nsqd, "GET", "/ping", tls=tls).body == b"OK"
        assert ask_secure(nsqd, "POST", "/pub?topic=t", body, tls=tls).body == b"OK"
        assert ask(nsqd, "POST", "/pub?topic=t", b"plain").body == b"OK"
        (topic,) = ask_secure(nsqd, "GET", "/stats?format=json&topic=t", tls=tls).json()["topics"]
        assert (topic["message_count"], topic["message_bytes"]) == (2, len(body) + 5)
        assert ask_secure(nsqd, "GET", "/nothing", tls=tls).code == "NOT_FOUND"
        assert ask(nsqd, "GET", "/config/tls_required").body == b"0"


def test_plain_http_is_refused_when_tls_is_required(server: Identity, tmp_path: Path) -> None:
    with secure_nsqd(tmp_path, server, "--tls-required") as nsqd:
        port = nsqd.listening_port("HTTPS")
        for method, target in [("GET", "/ping"), ("POST", "/pub?topic=t"), ("GET", "/nothing")]:
            answer = ask(nsqd, method, target, b"x" if method == "POST" else None)
            assert answer.status == 403
            expected = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'
            assert answer.body == expected.encode()
            assert answer.headers["Content-Type"] == JSON_TYPE
            assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"
        tls = client_context()
        assert ask_secure(nsqd, "GET", "/ping", tls=tls).body == b"OK"
        assert ask_secure(nsqd, "GET", "/config/tls_required", tls=tls).body == b"2"


def test_plain_http_may_be_left_open(server: Identity, tmp_path: Path) -> None:
    with secure_nsqd(tmp_path, server, "--tls-required=tcp-https") as nsqd:
        assert ask(nsqd, "GET", "/ping").body == b"OK"
        assert ask(nsqd, "GET", "/config/tls_required").body == b"1"
        assert ask_secure(nsqd, "GET", "/ping", tls=client_context()).body == b"OK"


def test_without_a_certificate_there_is_no_https(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--https-address=127.0.0.1:0"]) as nsqd:
        assert ask(nsqd, "GET", "/ping").body == b"OK"
        assert "HTTPS: listening" not in nsqd.log_text()


def test_empty_address_is_no_listener(server: Identity, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", [*server.flags(), "--https-address="]) as nsqd:
        assert ask(nsqd, "GET", "/ping").body == b"OK"
        assert "HTTPS: listening" not in nsqd.log_text()


@pytest.mark.parametrize(
    "policy", [pytest.param("require", marks=pytest.mark.deviation), "require-verify"]
)
def test_certificates_are_required_of_https_clients_too(
    authority: Authority, server: Identity, tmp_path: Path, policy: str
) -> None:
    flags = [f"--tls-client-auth-policy={policy}", f"--tls-root-ca-file={authority.path}"]
    stranger = client_context(identity=Authority(tmp_path, "unheard-of").issue("stranger"))
    friend = client_context(identity=authority.issue("friend"))
    with secure_nsqd(tmp_path, server, *flags) as nsqd:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_secure(nsqd, "GET", "/ping", tls=client_context())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_secure(nsqd, "GET", "/ping", tls=stranger)
        body = bytes(1_000_000)
        assert ask_secure(nsqd, "POST", "/pub?topic=t", body, tls=friend).body == b"OK"


def test_lowest_version(server: Identity, tmp_path: Path) -> None:
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with secure_nsqd(tmp_path, server, "--tls-min-version=tls1.3") as nsqd:
        with pytest.raises(ssl.SSLError):
            ask_secure(nsqd, "GET", "/ping", tls=old)
        answer = ask_secure(nsqd, "GET", "/config/tls_min_version", tls=client_context())
        assert json.loads(answer.body) == 0x0304


def test_daemon_stops_with_a_client_connected(server: Identity, tmp_path: Path) -> None:
    with secure_nsqd(tmp_path, server) as nsqd:
        port = nsqd.listening_port("HTTPS")
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=client_context())
        assert ask_on(connection, "GET", "/ping").body == b"OK"
        assert nsqd.stop() == 0
        connection.close()
        assert "Traceback" not in nsqd.log_text()


@pytest.mark.deviation
def test_ranges_of_the_log_are_whole_over_tls(
    authority: Authority, server: Identity, tmp_path: Path
) -> None:
    tls = client_context(authority=authority)
    body = bytes(range(256)) * 4000
    with secure_nsqd(tmp_path, server) as nsqd:
        for _ in range(3):
            assert ask(nsqd, "POST", "/pub?topic=t", body).body == b"OK"
        plain = ask(nsqd, "GET", "/log/raw?topic=t&from=0&to=3")
        assert plain.body.count(body) == 3
        assert ask_secure(nsqd, "GET", "/log/raw?topic=t&from=0&to=3", tls=tls).body == plain.body
