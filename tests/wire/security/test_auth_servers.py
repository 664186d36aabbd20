"""How the auth servers are asked, in what order, and what becomes of clients meanwhile."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.kit.auth_server import EVERYTHING, REFUSED, Answer, Asked, AuthorityServer, grant
from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.commands import auth, dpub, identify, mpub, pub, rdy, sub
from tests.kit.wire.session import FRAME_ERROR, FRAME_RESPONSE, OK, Connect, Session
from tests.kit.wire.upgraded import upgrade
from tests.wire.http.test_unix_socket import UnixClient, UnixNsqd

FAILED = (FRAME_ERROR, b"E_AUTH_FAILED AUTH failed")
NOBODY = "127.0.0.1:1"  # where no server listens


@pytest.fixture
def server() -> Iterator[AuthorityServer]:
    with AuthorityServer(lambda asked: grant()) as running:
        yield running


def start(path: Path, *addresses: str, flags: tuple[str, ...] = ()) -> Nsqd:
    return Nsqd(path / "data", [*(f"--auth-http-address={each}" for each in addresses), *flags])


def is_let_in(session: Session, secret: bytes = b"secret") -> bool:
    answer = session.request(auth(secret))
    assert answer.type == FRAME_RESPONSE or answer == FAILED
    return answer.type == FRAME_RESPONSE


def test_get_request(connect: Connect, tmp_path: Path, server: AuthorityServer) -> None:
    with start(tmp_path, server.address) as nsqd:
        assert is_let_in(connect(nsqd), b"s&c=r/t \xff")
    (asked,) = server.asked
    assert asked.method == "GET"
    secret = "s%26c%3Dr%2Ft+%FF"
    assert asked.target == f"/auth?common_name=&remote_ip=127.0.0.1&secret={secret}&tls=false"
    assert asked.headers["Accept"] == "application/vnd.nsq; version=1.0"


@pytest.mark.deviation
def test_post_request(connect: Connect, tmp_path: Path, server: AuthorityServer) -> None:
    """As NSQ does after 1.3.0."""
    with start(tmp_path, server.address, flags=("--auth-http-request-method=post",)) as nsqd:
        assert is_let_in(connect(nsqd), b"s&cret")
    (asked,) = server.asked
    assert (asked.method, asked.target) == ("POST", "/auth")
    assert asked.headers["Content-Type"] == "application/json"
    assert asked.headers["Accept"] == "application/vnd.nsq; version=1.0"
    expected = {"common_name": "", "remote_ip": "127.0.0.1", "secret": "s&cret", "tls": "false"}
    assert json.loads(asked.body) == {key: [value] for key, value in expected.items()}


def test_address_may_be_a_url(connect: Connect, tmp_path: Path, server: AuthorityServer) -> None:
    with start(tmp_path, f"http://{server.address}/some/where") as nsqd:
        assert is_let_in(connect(nsqd))
    assert urlsplit(server.asked[0].target).path == "/some/where"


def test_server_is_told_of_tls_and_the_name_in_the_certificate(
    connect: Connect, tmp_path: Path, server: AuthorityServer
) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("Some Body")
    for policy in ("require", "require-verify"):
        flags = (
            *authority.issue("server").flags(),
            "--https-address=127.0.0.1:0",
            f"--tls-client-auth-policy={policy}",
            f"--tls-root-ca-file={authority.path}",
        )
        with start(tmp_path, server.address, flags=flags) as nsqd:
            session = connect(nsqd)
            upgrade(session, tls=client_context(identity=client))
            assert is_let_in(session)
        told = parse_qs(urlsplit(server.asked.pop().target).query)
        assert (told["tls"], told["common_name"]) == (["true"], ["Some Body"])


def test_unix_socket_has_no_remote_ip(tmp_path: Path, server: AuthorityServer) -> None:
    nsqd = UnixNsqd(tmp_path / "data")
    nsqd.flags.append(f"--auth-http-address={server.address}")
    with nsqd:
        session = Session(UnixClient(nsqd.socket_path))
        assert is_let_in(session)
        session.close()
    asked = parse_qs(urlsplit(server.asked[0].target).query, keep_blank_values=True)
    assert asked["remote_ip"] == [""]


def test_one_server_that_answers_is_enough(
    connect: Connect, tmp_path: Path, server: AuthorityServer
) -> None:
    with (
        AuthorityServer(lambda asked: Answer(500, b"down")) as down,
        start(tmp_path, NOBODY, down.address, server.address) as nsqd,
    ):
        for _ in range(20):
            assert is_let_in(connect(nsqd))
    assert len(server.asked) == 20
    # From a random one on: had it always been first, or never, chance would be 3 in 10000.
    assert 0 < len(down.asked) < 20


def test_each_server_is_asked_once(connect: Connect, tmp_path: Path) -> None:
    with (
        AuthorityServer(lambda asked: REFUSED) as one,
        AuthorityServer(lambda asked: Answer(500, b"down")) as other,
        start(tmp_path, one.address, other.address) as nsqd,
    ):
        assert not is_let_in(connect(nsqd))
        assert (len(one.asked), len(other.asked)) == (1, 1)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(201, grant().body),
        Answer(404, b""),
        Answer(403, b'{"https_port":"4152"}'),
        Answer(403, b"not JSON"),
        Answer(200, b""),
        Answer(200, b"not JSON"),
        Answer(200, b"[]"),
        Answer(200, b"null"),
        grant(ttl_s=-1),
        grant(ttl_s="3600"),
        grant(ttl_s=3600.5),
        grant(identity=1),
        grant({**EVERYTHING, "permissions": ["publish", "read"]}),
        grant({**EVERYTHING, "permissions": "publish"}),
        grant({**EVERYTHING, "channels": ["ok", "["]}),
        grant({**EVERYTHING, "topic": r"(a)\1"}),
        grant({**EVERYTHING, "topic": "(?=a)"}),
        grant(["topic", ".*"]),
    ],
    ids=repr,
)
def test_answers_that_will_not_do(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], answer: Answer
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: answer
    assert not is_let_in(connect(nsqd))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nsqd, AuthorityServer]]:
    """For tests that set the answer themselves."""
    path = tmp_path_factory.mktemp("auth")
    with AuthorityServer(lambda asked: REFUSED) as server, start(path, server.address) as nsqd:
        yield nsqd, server


def test_keys_match_in_any_case_and_null_is_nothing(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    rows = [{**EVERYTHING, "Topic": None}, {"PERMISSIONS": None, "channels": None}, None]
    answer = {"TTL": 60, "Identity": None, "AUTHORIZATIONS": rows, "more": {}}
    server.answering = lambda asked: Answer(200, json.dumps(answer).encode())
    session = connect(nsqd)
    reply = session.request(auth(b"secret"))
    assert reply.data == b'{"identity":"","identity_url":"","permission_count":3}'
    assert session.request(pub(topic, b"x")) == OK


def test_answer_is_escaped_as_go_does(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer]
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant(identity="<é>", identity_url="http://h/?a&b")
    reply = connect(nsqd).request(auth(b"secret"))
    assert reply.data == (
        rb'{"identity":"\u003c' + "é".encode() + rb'\u003e","identity_url":"http://h/?a\u0026b",'
        b'"permission_count":1}'
    )


def test_stats_tell_who_is_who(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant(identity="somebody", identity_url="http://localhost/")
    session = connect(nsqd)
    assert is_let_in(session)
    assert session.request(sub(topic, "ch")) == OK
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    shown = client["authed"], client["auth_identity"], client["auth_identity_url"]
    assert shown == (True, "somebody", "http://localhost/")


def test_commands_wait_for_the_answer_in_order(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    go_on = threading.Event()

    def answering(asked: Asked) -> Answer:
        assert go_on.wait(10)
        return grant()

    server.answering = answering
    session = connect(nsqd)
    commands = [pub(topic, b"1"), mpub(topic, [b"2", b"3"]), dpub(topic, 0, b"4")]
    session.send(identify({}), auth(b"secret"), *commands, sub(topic, "ch"), rdy(5))
    assert session.frame() == OK
    # Others are served meanwhile.
    other = connect(nsqd)
    other.send(pub(topic, b"x"))
    assert other.until_closed()[0].data.startswith(b"E_AUTH_FIRST")
    go_on.set()
    assert session.frame().data.startswith(b'{"identity"')
    assert session.frames(4) == [OK] * 4
    assert [message.body for message in session.messages(4)] == [b"1", b"2", b"3", b"4"]


def test_client_that_leaves_while_it_waits(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    asked_now, go_on = threading.Event(), threading.Event()

    def answering(asked: Asked) -> Answer:
        asked_now.set()
        assert go_on.wait(10)
        return grant()

    server.answering = answering
    session = connect(nsqd)
    session.send(auth(b"secret"), pub(topic, b"x"))
    assert asked_now.wait(10)
    session.close()
    go_on.set()
    server.answering = lambda asked: grant()
    assert is_let_in(connect(nsqd))


def test_server_that_does_not_answer(connect: Connect, tmp_path: Path) -> None:
    forever = threading.Event()

    def answering(asked: Asked) -> Answer:
        forever.wait(30)
        return grant()

    with (
        AuthorityServer(answering) as server,
        start(tmp_path, server.address, flags=("--http-client-request-timeout=200ms",)) as nsqd,
    ):
        assert not is_let_in(connect(nsqd))
        forever.set()


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB", "SUB"])
def test_what_was_granted_is_asked_for_again_when_it_has_expired(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str, verb: str
) -> None:
    """Commands go on with what is granted now, and the secret need not be told again."""
    nsqd, server = shared
    server.answering = lambda asked: grant(ttl_s=1)
    subscriber, publisher = sessions = [connect(nsqd) for _ in range(2)]
    for session in sessions:  # what the subscriber was granted expires first
        assert is_let_in(session, verb.encode())
    command = {"PUB": pub(topic, b"x"), "MPUB": mpub(topic, [b"x"]), "DPUB": dpub(topic, 0, b"x")}
    asked_before = len(server.asked)

    def asked_again() -> bool:
        assert publisher.request(command.get(verb, pub(topic, b"x"))) == OK
        return len(server.asked) > asked_before

    wait_until(asked_again)
    secret = parse_qs(urlsplit(server.asked[-1].target).query)["secret"]
    assert secret == [verb]
    server.answering = lambda asked: grant({**EVERYTHING, "topic": "^another$"})

    def is_refused() -> bool:
        return publisher.request(command.get(verb, pub(topic, b"x"))) != OK

    if verb == "SUB":
        subscriber.send(sub(topic, "ch"))
        text = f'E_UNAUTHORIZED AUTH failed for SUB on "{topic}" "ch"'.encode()
        assert subscriber.until_closed() == [(FRAME_ERROR, text)]
    else:
        wait_until(is_refused)
        assert publisher.until_closed() == []


def test_grant_of_nothing_after_expiry(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant(ttl_s=1)
    session = connect(nsqd)
    assert is_let_in(session)
    server.answering = lambda asked: Answer(200, b'{"ttl":60}')
    frames = []

    def is_refused() -> bool:
        frames.append(session.request(pub(topic, b"x")))
        return frames[-1] != OK

    wait_until(is_refused)
    assert frames[-1].data == f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'.encode()


def test_subscription_outlives_what_was_granted(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant(ttl_s=1)
    publisher, subscriber = connect(nsqd), connect(nsqd)
    assert is_let_in(subscriber)  # what it was granted expires first
    assert is_let_in(publisher)
    subscriber.subscribe(topic, "ch", ready=10)
    asked_before = len(server.asked)

    def publisher_asked_again() -> bool:
        assert publisher.request(pub(topic, b"x")) == OK
        message = subscriber.message()
        subscriber.finish(message)
        return len(server.asked) > asked_before

    wait_until(publisher_asked_again)
    assert subscriber.before_barrier() == []


def test_mpub_is_checked_before_its_body_and_pub_after(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant({**EVERYTHING, "permissions": ["subscribe"]})
    early, late = connect(nsqd), connect(nsqd)
    assert is_let_in(early)
    assert is_let_in(late)
    early.send(f"MPUB {topic}\n".encode())
    text = f'E_UNAUTHORIZED AUTH failed for MPUB on "{topic}" ""'.encode()
    assert early.until_closed() == [(FRAME_ERROR, text)]
    late.send(f"PUB {topic}\n".encode() + b"\xff\xff\xff\xff")
    text = b"E_BAD_MESSAGE PUB invalid message body size -1"
    assert late.until_closed() == [(FRAME_ERROR, text)]


def test_refused_publish_creates_no_topic(
    connect: Connect, shared: tuple[Nsqd, AuthorityServer], topic: str
) -> None:
    nsqd, server = shared
    server.answering = lambda asked: grant({**EVERYTHING, "permissions": ["subscribe"]})
    session = connect(nsqd)
    assert is_let_in(session)
    session.send(pub(topic, b"x"))
    session.until_closed()
    assert nsqd.stats(topic)["topics"] is None


def test_http_api_is_not_covered(shared: tuple[Nsqd, AuthorityServer], topic: str) -> None:
    nsqd, _ = shared
    assert nsqd.http("POST", f"/pub?topic={topic}", b"x") == (200, b"OK")


def test_refusal_without_tls_is_followed_by_a_question_with_it(
    connect: Connect, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with AuthorityServer(lambda asked: grant(), authority.issue("auth")) as secure:
        moved = Answer(403, json.dumps({"https_port": secure.server_port}).encode())
        flags = (f"--tls-root-ca-file={authority.path}",)
        with (
            AuthorityServer(lambda asked: moved) as plain,
            start(tmp_path, plain.address, flags=flags) as nsqd,
        ):
            assert is_let_in(connect(nsqd))
        assert [asked.target for asked in plain.asked] == [asked.target for asked in secure.asked]


def test_auth_server_must_be_vouched_for(connect: Connect, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "unheard-of")
    flags = (f"--tls-root-ca-file={authority.path}",)
    with (
        AuthorityServer(lambda asked: grant(), stranger.issue("auth")) as server,
        start(tmp_path, f"https://{server.address}/", flags=flags) as nsqd,
    ):
        assert not is_let_in(connect(nsqd))
    assert server.asked == []


@pytest.mark.deviation
def test_log_does_not_tell_secrets(connect: Connect, tmp_path: Path) -> None:
    with (
        AuthorityServer(lambda asked: REFUSED) as server,
        start(tmp_path, server.address, NOBODY, "http://[", "no such host:x") as nsqd,
    ):
        assert not is_let_in(connect(nsqd), b"s3cr3t")
        log = nsqd.log_text()
    assert "AUTH failed" in log
    assert "s3cr3t" not in log
    assert "Traceback" not in log


@pytest.mark.deviation
def test_without_the_library_for_expressions_nsqd_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that could check no permission must not look as if it did."""
    (tmp_path / "re2.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    nsqd = start(tmp_path, NOBODY)
    with pytest.raises(AssertionError, match="ended with 1"):
        nsqd.start()
    reason = "--auth-http-address needs google-re2: pip install 'pumpline[auth]'"
    assert f"failed to instantiate nsqd - {reason}" in nsqd.log_text()
