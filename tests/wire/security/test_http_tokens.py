"""Access to the HTTP API by token and by client certificate."""

import http.client
import os
import re
import signal
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import Options
from pumpline.nsqd.server import Server
from pumpline.web.endpoint import Access, Endpoint
from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd, wait_until
from tests.kit.wire.web import Answer, ask, ask_on, open_connection

pytestmark = pytest.mark.deviation

WRITER = "writer-0123456789abcdef"
READER = "reader-0123456789abcdef"

OPEN = [("GET", "/ping"), ("GET", "/info"), ("GET", "/stats"), ("GET", "/config/log_level")]
MUTATING = [
    ("POST", "/pub?topic=t"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/topic/create?topic=t"),
    ("POST", "/topic/pause?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/empty?topic=t&channel=c"),
    ("POST", "/topic/delete?topic=t"),
    ("PUT", "/config/log_level"),
    ("GET", "/debug/pprof/cmdline"),
]


def bearer(token: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {token}"}


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"# of the tests\n{WRITER}\n{READER} read\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, token_file: Path) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("nsqd") / "data"
    with Nsqd(path, [f"--http-token-file={token_file}"]) as daemon:
        yield daemon


@pytest.mark.parametrize(("method", "target"), OPEN)
def test_figures_are_open_to_all(nsqd: Nsqd, method: str, target: str) -> None:
    assert ask(nsqd, method, target).status == 200


@pytest.mark.parametrize(("method", "target"), MUTATING)
def test_what_changes_something_wants_a_token(nsqd: Nsqd, method: str, target: str) -> None:
    body = b"info" if method != "GET" else None
    for made in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert ask(nsqd, "POST", made, headers=bearer(WRITER)).status == 200
    for headers in ({}, bearer("wrong-0123456789abcdef"), bearer(""), bearer(WRITER, "Basic")):
        answer = ask(nsqd, method, target, body, headers=headers)
        assert (answer.status, answer.code) == (401, "UNAUTHORIZED")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="nsqd"'
    answer = ask(nsqd, method, target, body, headers=bearer(READER))
    assert (answer.status, answer.code) == (403, "FORBIDDEN")
    assert ask(nsqd, method, target, body, headers=bearer(WRITER)).status == 200


def test_refused_requests_do_nothing(nsqd: Nsqd, topic: str) -> None:
    assert ask(nsqd, "POST", f"/pub?topic={topic}", b"x").status == 401
    assert ask(nsqd, "POST", f"/topic/create?topic={topic}").status == 401
    assert nsqd.stats(topic)["topics"] is None


def test_scheme_in_any_case_and_spaces(nsqd: Nsqd, topic: str) -> None:
    for value in (f"bearer {WRITER}", f"BEARER   {WRITER}  "):
        headers = {"Authorization": value}
        assert ask(nsqd, "POST", f"/pub?topic={topic}", b"x", headers=headers).status == 200


def test_two_tokens_are_none(nsqd: Nsqd, topic: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=IO_TIMEOUT_S)
    connection.putrequest("POST", f"/topic/create?topic={topic}")
    connection.putheader("Authorization", f"Bearer {WRITER}")
    connection.putheader("Authorization", f"Bearer {WRITER}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_large_body_is_refused_unread_and_the_answer_is_seen(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "POST", "/mpub?topic=t", bytes(4_000_000))
    assert (answer.status, answer.code) == (401, "UNAUTHORIZED")


def test_refusals_are_logged_even_of_publishes(nsqd: Nsqd) -> None:
    ask(nsqd, "POST", "/pub?topic=telltale", b"x")
    wait_until(lambda: "401 POST /pub?topic=telltale (" in nsqd.log_text())


def test_tokens_are_shown_nowhere(nsqd: Nsqd, token_file: Path) -> None:
    ask(nsqd, "POST", "/pub?topic=t", b"x", headers=bearer(WRITER))
    assert ask(nsqd, "GET", "/config/http_token_file").body == str(token_file).encode()
    heap = ask(nsqd, "GET", "/debug/pprof/cmdline", headers=bearer(WRITER)).body
    for text in (heap.decode(), nsqd.log_text(), str(nsqd.stats())):
        assert WRITER not in text
        assert READER not in text


def test_tokens_are_changed_by_a_hangup(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(WRITER)
    old, new = bearer(WRITER), bearer("new-0123456789abcdef")

    def reread(nsqd: Nsqd, text: str, line: str) -> None:
        path.write_text(text)
        os.kill(nsqd.process.pid, signal.SIGHUP)
        wait_until(lambda: line in nsqd.log_text())

    def statuses(nsqd: Nsqd) -> list[int]:
        return [ask(nsqd, "POST", "/pub?topic=t", b"x", headers=each).status for each in (old, new)]

    with Nsqd(tmp_path / "data", [f"--http-token-file={path}"]) as nsqd:
        with closing(open_connection(nsqd)) as kept:
            assert statuses(nsqd) == [200, 401]
            assert ask_on(kept, "POST", "/pub?topic=t", b"x", headers=old).status == 200
            reread(nsqd, f"{WRITER}\nnew-0123456789abcdef\n", "HTTP: 2 tokens read from")
            assert statuses(nsqd) == [200, 200]
            assert ask_on(kept, "POST", "/pub?topic=t", b"x", headers=old).status == 200
            reread(nsqd, "new-0123456789abcdef", "HTTP: 1 tokens read from")
            assert statuses(nsqd) == [401, 200]
            assert ask_on(kept, "POST", "/pub?topic=t", b"x", headers=old).status == 401
        reread(nsqd, "", f"HTTP: tokens not changed - {path}: there is no token in it")
        assert statuses(nsqd) == [401, 200]


def test_daemon_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("short")
    nsqd = Nsqd(tmp_path / "data", [f"--http-token-file={path}"])
    with pytest.raises(AssertionError):
        nsqd.start()
    assert f"FATAL: failed to instantiate nsqd - {path}: the token of line 1" in nsqd.log_text()


# -- certificates -----------------------------------------------------------------------------


def ask_secure(nsqd: Nsqd, method: str, target: str, tls: ssl.SSLContext) -> Answer:
    port = nsqd.listening_port("HTTPS")
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=IO_TIMEOUT_S, context=tls)
    try:
        return ask_on(connection, method, target, b"x" if method == "POST" else None)
    finally:
        connection.close()


def secured(directory: Path, authority: Authority, *flags: str) -> Nsqd:
    server = authority.issue("server")
    return Nsqd(
        directory / "data",
        [
            *server.flags(),
            "--https-address=127.0.0.1:0",
            f"--http-client-ca-file={authority.path}",
            *flags,
        ],
    )


def test_certificate_on_https_does_instead_of_a_token(tmp_path: Path, authority: Authority) -> None:
    friend = client_context(identity=authority.issue("friend"))
    stranger = client_context(identity=Authority(tmp_path, "unheard-of").issue("stranger"))
    with secured(tmp_path, authority) as nsqd:
        assert ask_secure(nsqd, "POST", "/pub?topic=t", friend).status == 200
        assert ask_secure(nsqd, "GET", "/stats", client_context()).status == 200
        answer = ask_secure(nsqd, "POST", "/pub?topic=t", client_context())
        assert (answer.status, answer.code) == (403, "CERTIFICATE_REQUIRED")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_secure(nsqd, "GET", "/ping", stranger)
        # Plain HTTP cannot show one, and TCP clients are not asked.
        assert ask(nsqd, "POST", "/pub?topic=t", b"x").code == "CERTIFICATE_REQUIRED"
        with nsqd.connect() as client:
            client.publish("t", b"x")


def test_either_a_token_or_a_certificate_will_do(
    tmp_path: Path, authority: Authority, token_file: Path
) -> None:
    friend = client_context(identity=authority.issue("friend"))
    with secured(tmp_path, authority, f"--http-token-file={token_file}") as nsqd:
        assert ask_secure(nsqd, "POST", "/pub?topic=t", friend).status == 200
        assert ask_secure(nsqd, "POST", "/pub?topic=t", client_context()).status == 401
        assert ask(nsqd, "POST", "/pub?topic=t", b"x", headers=bearer(WRITER)).status == 200


def test_policy_for_clients_asks_for_certificates_of_the_other_authority(
    tmp_path: Path, authority: Authority
) -> None:
    clients = Authority(tmp_path, "clients")
    flags = ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={clients.path}"]
    with secured(tmp_path, authority, *flags) as nsqd:
        friend = client_context(identity=authority.issue("friend"))
        assert ask_secure(nsqd, "POST", "/pub?topic=t", friend).status == 200
        for identity in (None, clients.issue("consumer")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask_secure(nsqd, "GET", "/ping", client_context(identity=identity))


# -- the table of routes ----------------------------------------------------------------------


async def test_every_route_that_changes_or_shows_messages_is_guarded(tmp_path: Path) -> None:
    addresses = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    options = Options(data_path=str(tmp_path), **addresses)
    server = Server(options, Claim(options))
    await server.start()
    await server.close()
    routes = server._http[0]._site._routes
    table: dict[tuple[str, str], Endpoint] = {
        (method, path): endpoint
        for known in (routes._paths, {path: each for (path, _), each in routes._prefixes.items()})
        for path, methods in known.items()
        for method, endpoint in methods.items()
    }
    opened = {key for key, each in table.items() if each.access_by(key[0]) is Access.OPEN}
    assert {("GET", "/ping"), ("GET", "/stats")} <= opened
    assert {method for method, _ in opened} == {"GET"}
    assert not [path for _, path in opened if re.match(r"/(log|hold|debug)/", path)]


# -- the warning ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "guarded", "warned"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)],
)
async def test_port_that_is_open_to_all_is_pointed_out(
    tmp_path: Path,
    token_file: Path,
    caplog: pytest.LogCaptureFixture,
    host: str,
    guarded: bool,
    warned: bool,
) -> None:
    options = Options(
        data_path=str(tmp_path),
        tcp_address="127.0.0.1:0",
        http_address=f"{host}:0",
        http_token_file=str(token_file) if guarded else "",
    )
    server = Server(options, Claim(options))
    await server.start()
    await server.close()
    said = [text for text in caplog.messages if text.startswith("HTTP: whoever can reach 0.0.0.0:")]
    assert bool(said) is warned
