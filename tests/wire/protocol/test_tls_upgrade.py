"""TLS on the client port: what is negotiated, shown and refused, with and without certificates
of clients."""

import contextlib
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.certificates import Authority, Identity, client_context
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.commands import identify, mpub, pub, sub
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, Session
from tests.kit.wire.upgraded import consume_and_finish, negotiate, secure_nsqd, upgrade, wrap_tls


@pytest.fixture(scope="module")
def nsqd(server: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with secure_nsqd(tmp_path_factory.mktemp("tls"), server) as daemon:
        yield daemon


def only(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def is_refused(session: Session, context: ssl.SSLContext) -> bool:
    """Whether TLS cannot be had; a client of version 1.3 hears of that after its handshake."""
    assert negotiate(session, tls_v1=True)["tls_v1"] is True
    try:
        wrap_tls(session, context)
        session.frame()
    except (ssl.SSLError, EOFError, ConnectionError):
        return True
    return False


def test_server_shows_its_certificate(connect: Connect, authority: Authority) -> None:
    session = connect()
    assert upgrade(session, tls=client_context(authority=authority))["tls_v1"] is True


@pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True}], ids=str)
def test_publish_consume_finish(
    nsqd: Nsqd, connect: Connect, topic: str, compression: dict[str, bool]
) -> None:
    session = connect()
    upgrade(session, tls=client_context(), **compression)
    published = [b"one", b"two" * 100_000, bytes(range(256)) * 100]
    assert session.request(mpub(topic, published)) == OK
    consume_and_finish(session, topic, published)
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert client["tls"] is True
    assert client["snappy"] is compression.get("snappy", False)
    assert client["deflate"] is compression.get("deflate", False)


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        (ssl.TLSVersion.TLSv1, "TLS1.0"),
        (ssl.TLSVersion.TLSv1_1, "TLS1.1"),
        (ssl.TLSVersion.TLSv1_2, "TLS1.2"),
        (ssl.TLSVersion.TLSv1_3, "TLS1.3"),
    ],
)
def test_stats_tell_version_and_cipher_suite(
    nsqd: Nsqd, connect: Connect, topic: str, version: ssl.TLSVersion, shown: str
) -> None:
    session = connect()
    upgrade(session, tls=only(version))
    assert session.request(sub(topic, "ch")) == OK
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["tls"], client["tls_version"]) == (True, shown)
    if version < ssl.TLSVersion.TLSv1_3:  # of which the original knows the numbers only
        assert client["tls_cipher_suite"].startswith("TLS_ECDHE_ECDSA_WITH_AES_")
    assert client["tls_negotiated_protocol"] == ""
    assert client["tls_negotiated_protocol_is_mutual"] is True


def test_who_does_not_ask_stays_plain(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    assert negotiate(session)["tls_v1"] is False
    assert session.request(sub(topic, "ch")) == OK
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    shown = client["tls"], client["tls_version"], client["tls_cipher_suite"]
    assert shown == (False, "", "")
    assert client["tls_negotiated_protocol_is_mutual"] is False


def test_without_feature_negotiation_there_is_no_tls(connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(identify({"tls_v1": True})) == OK
    assert session.request(pub(topic, b"plain")) == OK


def test_error_frame_is_inside(connect: Connect) -> None:
    session = connect()
    upgrade(session, tls=client_context())
    session.send(b"BOGUS\n")
    assert session.until_closed() == [(FRAME_ERROR, b"E_INVALID invalid command BOGUS")]


def test_client_that_says_goodbye_is_gone(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, tls=client_context())
    assert session.request(sub(topic, "ch")) == OK
    wrapped = session.raw.socket
    assert isinstance(wrapped, ssl.SSLSocket)
    wrapped.settimeout(0)
    with contextlib.suppress(ssl.SSLError):  # it is sent; whether it is answered yet, is chance
        wrapped.unwrap()
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 0)


def test_plain_commands_instead_of_a_handshake(connect: Connect, topic: str) -> None:
    session = connect()
    negotiate(session, tls_v1=True)
    session.send(pub(topic, b"plain"))
    text = b"E_IDENTIFY_FAILED IDENTIFY failed tls: first record does not look like a TLS handshake"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_client_that_leaves_instead_of_a_handshake(connect: Connect) -> None:
    session = connect()
    negotiate(session, tls_v1=True)
    session.half_close()
    text = b"E_IDENTIFY_FAILED IDENTIFY failed EOF"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_lowest_version(connect: Connect, server: Identity, tmp_path: Path, topic: str) -> None:
    with secure_nsqd(tmp_path, server, "--tls-min-version=tls1.2") as strict:
        assert is_refused(connect(strict), only(ssl.TLSVersion.TLSv1_1))
        session = connect(strict)
        upgrade(session, tls=only(ssl.TLSVersion.TLSv1_2))
        assert session.request(pub(topic, b"x")) == OK


@pytest.mark.parametrize(
    "policy", ["require-verify", pytest.param("require", marks=pytest.mark.deviation)]
)
def test_certificate_must_be_one_of_the_authority(
    connect: Connect, authority: Authority, server: Identity, tmp_path: Path, policy: str
) -> None:
    """NSQ's `require` accepts any certificate."""
    stranger = Authority(tmp_path, "unheard-of").issue("stranger")
    friend = authority.issue("friend")
    flags = [f"--tls-client-auth-policy={policy}", f"--tls-root-ca-file={authority.path}"]
    with secure_nsqd(tmp_path, server, *flags) as daemon:
        warning = "--tls-client-auth-policy=require is taken as require-verify"
        assert daemon.log_text().count(warning) == (policy == "require")
        assert is_refused(connect(daemon), client_context())
        assert is_refused(connect(daemon), client_context(identity=stranger))
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = client_context(identity=friend)
            context.maximum_version = version
            session = connect(daemon)
            upgrade(session, tls=context, snappy=True)
            assert session.request(pub("t", bytes(100_000))) == OK


def test_policy_makes_tls_required(connect: Connect, server: Identity, tmp_path: Path) -> None:
    with secure_nsqd(tmp_path, server, "--tls-client-auth-policy=require") as daemon:
        session = connect(daemon)
        session.send(b"NOP\n")
        text = b"E_INVALID cannot NOP in current state (TLS required)"
        assert session.until_closed() == [(FRAME_ERROR, text)]


def test_session_is_resumed(connect: Connect) -> None:
    context = only(ssl.TLSVersion.TLSv1_2)
    first = connect()
    upgrade(first, tls=context)
    wrapped = first.raw.socket
    assert isinstance(wrapped, ssl.SSLSocket)
    second = connect()
    negotiate(second, tls_v1=True)
    second.raw.socket = context.wrap_socket(
        second.raw.socket, server_hostname="127.0.0.1", session=wrapped.session
    )
    assert second.raw.socket.session_reused
    assert second.frame() == OK


@pytest.mark.deviation
def test_second_upgrade_is_refused(connect: Connect) -> None:
    """NSQ starts a handshake outside the first one."""
    session = connect()
    upgrade(session, tls=client_context())
    session.send(identify({"feature_negotiation": True, "tls_v1": True}))
    text = b"E_IDENTIFY_FAILED IDENTIFY failed already upgraded"
    assert session.until_closed() == [(FRAME_ERROR, text)]
