"""A TLS client accepts the certificates that Go's NSQ accepts, on every Python."""

import ssl
from pathlib import Path

import pytest

from pumpline.core.protocol.layers import Tls, UpgradeError
from pumpline.core.protocol.verification import verifying_context
from tests.kit.certificates import Authority, Identity

NAME = "127.0.0.1"


def shake_hands(server: Identity, ca_file: Path, name: str = NAME) -> None:
    """UpgradeError if the client does not accept the server's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    there, here = Tls(context), Tls(verifying_context(str(ca_file)), server_name=name)
    while not here.established:
        here.shake_hands()
        if sent := here.take():
            there.receive(sent)
            there.shake_hands()
        if answered := there.take():
            here.receive(answered)


def test_certificates_without_key_identifiers(tmp_path: Path) -> None:
    """Python 3.13 refuses them unless it is told otherwise."""
    authority = Authority(tmp_path)
    shake_hands(authority.issue("server"), authority.path)


def test_chain_that_ends_at_an_intermediate_authority(tmp_path: Path) -> None:
    """Python before 3.13 refuses it unless it is told otherwise."""
    intermediate = Authority(tmp_path).authorize("intermediate")
    shake_hands(intermediate.issue("server"), intermediate.path)


def test_other_authorities_and_other_names_are_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server = authority.issue("server")
    with pytest.raises(UpgradeError, match="certificate verify failed"):
        shake_hands(server, other.path)
    with pytest.raises(UpgradeError, match="certificate verify failed"):
        shake_hands(server, authority.path, name="127.0.0.2")
