"""A daemon that requires TLS: what it refuses before the upgrade, and the upgrade itself."""

import json
import ssl
import subprocess
from collections.abc import Iterator

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import identify, pub, rdy, sub
from tests.kit.wire.session import FRAME_ERROR, OK, Connect


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subprocess.run(
        [*request.split(), "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    flags = ["--tls-required", f"--tls-cert={certificate}", f"--tls-key={key}"]
    with Nsqd(directory / "data", [*flags, "--https-address=127.0.0.1:0"]) as daemon:
        yield daemon


VERBS = [
    "FIN",
    "RDY",
    "REQ",
    "PUB",
    "MPUB",
    "DPUB",
    "NOP",
    "TOUCH",
    "SUB",
    "CLS",
    "AUTH",
    "BAD",
    "",
]


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_but_identify_is_allowed_before_the_upgrade(connect: Connect, verb: str) -> None:
    session = connect()
    session.send(verb.encode() + b"\n")
    text = f"E_INVALID cannot {verb} in current state (TLS required)".encode()
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_identify_without_the_upgrade_does_not_help(connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(identify({})) == OK
    session.send(pub(topic, b"x"))
    text = b"E_INVALID cannot PUB in current state (TLS required)"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_publish_and_consume_after_the_upgrade(connect: Connect, topic: str) -> None:
    session = connect()
    answer = session.request(identify({"feature_negotiation": True, "tls_v1": True}))
    assert json.loads(answer.data)["tls_v1"] is True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    session.raw.socket = context.wrap_socket(session.raw.socket)
    assert session.frame() == OK
    assert session.request(pub(topic, b"secret")) == OK
    assert session.request(sub(topic, "ch")) == OK
    session.send(rdy(1))
    assert session.message().body == b"secret"
    other = connect()  # what is known of the topic by now opens nothing to others
    other.send(pub(topic, b"x"))
    text = b"E_INVALID cannot PUB in current state (TLS required)"
    assert other.until_closed() == [(FRAME_ERROR, text)]
