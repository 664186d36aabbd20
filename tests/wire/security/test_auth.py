"""AUTH against an auth server of the test's own, which answers by the secret it is shown."""

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd, wait_until
from tests.kit.wire.commands import auth, dpub, identify, mpub, pub, sub
from tests.kit.wire.session import FRAME_ERROR, FRAME_RESPONSE, OK, Connect
from tests.kit.wire.web import ask, ask_on

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}


def granted(*rows: object, ttl_s: int = 3600, **fields: str) -> dict[str, object]:
    return {"ttl": ttl_s, "identity": "", "identity_url": "", "authorizations": rows, **fields}


ANSWERS: dict[str, dict[str, object]] = {
    "all": granted(EVERYTHING, identity="somebody", identity_url="http://localhost/somebody"),
    "nothing": granted(),
    "only one topic": granted({**EVERYTHING, "topic": "^open$"}),
    "only one channel": granted({**EVERYTHING, "channels": ["^open$"]}),
    "only publish": granted({**EVERYTHING, "permissions": ["publish"]}),
    "only subscribe": granted({**EVERYTHING, "permissions": ["subscribe"]}),
    "part of a name": granted({**EVERYTHING, "topic": "pi"}),
    "two rows": granted({**EVERYTHING, "topic": "^a$"}, EVERYTHING),
    "no time": granted(EVERYTHING, ttl_s=0),
    "unknown permission": granted({**EVERYTHING, "permissions": ["administer"]}),
    "bad expression": granted({**EVERYTHING, "topic": "("}),
    "hostile expression": granted({**EVERYTHING, "topic": "^(a+)+$"}),
    "once": granted(EVERYTHING, ttl_s=1),
}


class AuthHandler(BaseHTTPRequestHandler):
    server: "AuthServer"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        secret = parse_qs(address.query).get("secret", [""])[0]
        first_time = secret not in self.server.queries
        self.server.queries.setdefault(secret, []).append(address.query)
        known = secret in ANSWERS and (secret != "once" or first_time)
        body = json.dumps(ANSWERS[secret] if known else {}).encode()
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class AuthServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), AuthHandler)
        self.queries: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def nsqd(auth_server: AuthServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path: Path = tmp_path_factory.mktemp("auth") / "data"
    with Nsqd(path, [f"--auth-http-address=127.0.0.1:{auth_server.server_port}"]) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def forget_queries(auth_server: AuthServer) -> None:
    """What other tests have asked is none of this one's business."""
    auth_server.queries.clear()


def commands(topic: str) -> dict[str, bytes]:
    return {
        "PUB": pub(topic, b"x"),
        "MPUB": mpub(topic, [b"x"]),
        "DPUB": dpub(topic, 0, b"x"),
        "SUB": sub(topic, "ch"),
    }


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB", "SUB"])
def test_auth_comes_first(connect: Connect, topic: str, verb: str) -> None:
    session = connect()
    session.send(commands(topic)[verb])
    text = f"E_AUTH_FIRST AUTH required before {verb}".encode()
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_identify_says_that_auth_is_required(connect: Connect) -> None:
    answer = json.loads(connect().request(identify({"feature_negotiation": True})).data)
    assert answer["auth_required"] is True


def test_answer_to_auth(connect: Connect, topic: str) -> None:
    session = connect()
    answer = session.request(auth(b"all"))
    assert answer == (
        FRAME_RESPONSE,
        b'{"identity":"somebody","identity_url":"http://localhost/somebody","permission_count":1}',
    )
    for command in commands(topic).values():
        assert session.request(command) == OK


def test_what_the_auth_server_is_asked(connect: Connect, auth_server: AuthServer) -> None:
    assert connect().request(auth(b"two rows")).data.endswith(b'"permission_count":2}')
    (query,) = auth_server.queries["two rows"]
    assert query == "common_name=&remote_ip=127.0.0.1&secret=two+rows&tls=false"


def test_auth_twice_is_refused(connect: Connect) -> None:
    session = connect()
    assert session.request(auth(b"all")).type == FRAME_RESPONSE
    session.send(auth(b"all"))
    assert session.until_closed() == [(FRAME_ERROR, b"E_INVALID AUTH already set")]


@pytest.mark.parametrize(
    "secret", ["wrong", "no time", "unknown permission", "bad expression", "\x00\n "]
)
def test_failed_auth_does_not_say_why(connect: Connect, secret: str) -> None:
    session = connect()
    session.send(auth(secret.encode()))
    assert session.until_closed() == [(FRAME_ERROR, b"E_AUTH_FAILED AUTH failed")]


def test_auth_without_any_authorization(connect: Connect) -> None:
    session = connect()
    session.send(auth(b"nothing"))
    text = b"E_UNAUTHORIZED AUTH no authorizations found"
    assert session.until_closed() == [(FRAME_ERROR, text)]


@pytest.mark.parametrize(
    ("secret", "verb", "allowed"),
    [
        ("only one topic", "PUB", False),
        ("only one topic", "MPUB", False),
        ("only one topic", "DPUB", False),
        ("only one topic", "SUB", False),
        # A publish has no channel, and an expression for one must match even that.
        ("only one channel", "PUB", False),
        ("only one channel", "SUB", False),
        ("only publish", "MPUB", True),
        ("only publish", "SUB", False),
        ("only subscribe", "DPUB", False),
        ("only subscribe", "SUB", True),
        ("part of a name", "PUB", True),
        ("two rows", "SUB", True),
    ],
)
def test_permissions(connect: Connect, topic: str, secret: str, verb: str, allowed: bool) -> None:
    session = connect()
    assert session.request(auth(secret.encode())).type == FRAME_RESPONSE
    session.send(commands(topic)[verb])
    if allowed:
        assert session.frame() == OK
    else:
        channel = "ch" if verb == "SUB" else ""
        text = f'E_UNAUTHORIZED AUTH failed for {verb} on "{topic}" "{channel}"'.encode()
        assert session.until_closed() == [(FRAME_ERROR, text)]


def test_a_topic_that_others_publish_to_stays_closed(connect: Connect, topic: str) -> None:
    allowed, limited = connect(), connect()
    assert allowed.request(auth(b"all")).type == FRAME_RESPONSE
    allowed.send(*[pub(name, b"x") for name in ("open", topic) * 2])
    assert allowed.frames(4) == [OK] * 4
    assert limited.request(auth(b"only one topic")).type == FRAME_RESPONSE
    limited.send(pub("open", b"x"), pub(topic, b"x"), pub("open", b"x"))
    text = f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'.encode()
    assert limited.until_closed() == [OK, (FRAME_ERROR, text)]


def test_a_hostile_expression_does_not_stall_nsqd(connect: Connect) -> None:
    """With backtracking this one takes 2^63 steps."""
    session = connect()
    assert session.request(auth(b"hostile expression")).type == FRAME_RESPONSE
    assert session.request(pub("a" * 64, b"x")) == OK
    topic = "a" * 63 + "b"
    session.send(pub(topic, b"x"))
    text = f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'.encode()
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_permission_is_asked_for_again_when_it_has_expired(
    connect: Connect, topic: str, auth_server: AuthServer
) -> None:
    session = connect()
    assert session.request(auth(b"once")).type == FRAME_RESPONSE
    # Published until the server was asked again and said no.
    frames = []

    def publish_until_refused() -> bool:
        name = f"{topic}.{len(frames) % 3}"  # what was allowed for others is not remembered, either
        frames.append(session.request(pub(name, b"x")))
        return frames[-1] != OK

    wait_until(publish_until_refused)
    assert frames[-1] == (FRAME_ERROR, b"E_AUTH_FAILED AUTH failed")
    assert len(auth_server.queries["once"]) == 2


# -- reading the log over HTTP ----------------------------------------------------------------


LOG_ROUTES = [
    ("GET", "/log/offsets"),
    ("GET", "/log/offsets?topic=t"),
    ("GET", "/log/peek?topic=t"),
    ("GET", "/log/tail?topic=t"),
    ("GET", "/log/raw?topic=t&from=0&to=1"),
    ("GET", "/log/files?topic=t&from=0&to=1&machine=x"),
    ("POST", "/hold/create?topic=t&hold=h"),
    ("POST", "/hold/commit?topic=t&hold=h&offset=1"),
    ("POST", "/hold/delete?topic=t&hold=h"),
    ("GET", "/hold/list?topic=t"),
    ("POST", "/topic/settings?topic=t"),  # dead letters can go to a topic of somebody else
]


@pytest.mark.deviation
@pytest.mark.parametrize(("method", "target"), LOG_ROUTES)
def test_with_auth_and_no_access_tokens_nobody_reads_the_log_over_http(
    nsqd: Nsqd, method: str, target: str
) -> None:
    assert ask(nsqd, "POST", "/pub?topic=t", b"of another tenant").status == 200
    answer = ask(nsqd, method, target)
    assert (answer.status, answer.code) == (403, "ACCESS_TOKEN_REQUIRED")
    assert "HTTP: /log, /hold and changes of settings are closed" in nsqd.log_text()


@pytest.mark.deviation
def test_with_auth_an_access_token_opens_the_log(auth_server: AuthServer, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("reader-0123456789abcdef read\nwriter-0123456789abcdef\n")
    flags = [
        f"--auth-http-address=127.0.0.1:{auth_server.server_port}",
        f"--http-token-file={tokens}",
    ]
    reader, writer = (
        {"Authorization": f"Bearer {word}-0123456789abcdef"} for word in ("reader", "writer")
    )
    with Nsqd(tmp_path / "data", flags) as nsqd:
        assert ask(nsqd, "POST", "/pub?topic=t", b"x", headers=writer).status == 200
        assert ask(nsqd, "GET", "/log/peek?topic=t").status == 401
        assert ask(nsqd, "GET", "/log/peek?topic=t", headers=reader).status == 200


@pytest.mark.deviation
def test_with_auth_a_certificate_opens_the_log(
    auth_server: AuthServer, tmp_path: Path, authority: Authority
) -> None:
    flags = [
        f"--auth-http-address=127.0.0.1:{auth_server.server_port}",
        *authority.issue("server").flags(),
        "--https-address=127.0.0.1:0",
        "--tls-client-auth-policy=require-verify",
        f"--tls-root-ca-file={authority.path}",
        "--tls-required=false",
    ]
    with Nsqd(tmp_path / "data", flags) as nsqd:
        assert ask(nsqd, "GET", "/log/offsets").status == 403
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            nsqd.listening_port("HTTPS"),
            timeout=IO_TIMEOUT_S,
            context=client_context(identity=authority.issue("friend")),
        )
        assert ask_on(connection, "GET", "/log/offsets").status == 200
        connection.close()
