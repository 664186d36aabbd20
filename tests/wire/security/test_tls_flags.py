"""TLS flags that cannot be: nsqd does not begin, and says why in one line."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.kit.certificates import Authority
from tests.kit.daemons import Nsqd

BUILD = "failed to build TLS config - "
BUILD_CLIENT = "failed to build client TLS config - "
SWITCHED = (
    "tls: failed to find certificate PEM data in certificate input, but did find a private key; "
    "PEM inputs may have been switched"
)

# Flags, with names of files for %, and what follows `failed to instantiate nsqd - `.
FAULTS = [
    (["cert=%nothing", "key=%nothing"], BUILD + "open %nothing: no such file or directory"),
    (["cert=%server.pem"], BUILD + "open : no such file or directory"),
    (["key=%server-key.pem"], BUILD + "open : no such file or directory"),
    (["cert=%", "key=%server-key.pem"], BUILD + "read %: is a directory"),
    (
        ["cert=%junk.pem", "key=%server-key.pem"],
        BUILD + "tls: failed to find any PEM data in certificate input",
    ),
    (
        ["cert=%server.pem", "key=%junk.pem"],
        BUILD + "tls: failed to find any PEM data in key input",
    ),
    (
        ["cert=%server.pem", "key=%other-key.pem"],
        BUILD + "tls: private key does not match public key",
    ),
    (["cert=%server-key.pem", "key=%server.pem"], BUILD + SWITCHED),
    (
        ["cert=%server.pem", "key=%server.pem"],
        BUILD + "tls: found a certificate rather than a key in the PEM for the private key",
    ),
    (
        ["cert=%server.pem", "key=%server-key.pem", "root-ca-file=%nothing"],
        BUILD + "open %nothing: no such file or directory",
    ),
    (
        ["cert=%server.pem", "key=%server-key.pem", "root-ca-file=%junk.pem"],
        BUILD + "failed to append certificate to pool",
    ),
    (["root-ca-file=%nothing"], BUILD_CLIENT + "open %nothing: no such file or directory"),
    (["root-ca-file=%junk.pem"], BUILD_CLIENT + "failed to append certificate to pool"),
    (["required"], "cannot require TLS client connections without TLS key and cert"),
    (
        ["client-auth-policy=require"],
        "cannot require TLS client connections without TLS key and cert",
    ),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    authority = Authority(path)
    authority.issue("server")
    authority.issue("other")
    (path / "junk.pem").write_text("junk")
    return path


@pytest.mark.parametrize(("flags", "cause"), FAULTS, ids=lambda value: str(value)[:60])
def test_nsqd_does_not_begin(directory: Path, tmp_path: Path, flags: list[str], cause: str) -> None:
    nsqd = Nsqd(
        tmp_path / "data", [f"--tls-{flag.replace('%', f'{directory}/')}" for flag in flags]
    )
    with pytest.raises(AssertionError, match="ended with 1"):
        nsqd.start()
    *_, last_line = nsqd.log_text().splitlines()
    where = f"{directory}/" if "%" in cause else ""
    expected = cause.replace("%", where)
    assert last_line.endswith(f"FATAL: failed to instantiate nsqd - {expected}")


def test_encrypted_key_is_not_asked_about(directory: Path, tmp_path: Path) -> None:
    plain = load_pem_private_key((directory / "server-key.pem").read_bytes(), None)
    key = tmp_path / "encrypted-key.pem"
    encryption = BestAvailableEncryption(b"password")
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    flags = [f"--tls-cert={directory}/server.pem", f"--tls-key={key}"]
    nsqd = Nsqd(tmp_path / "data", [*flags, "--https-address=127.0.0.1:0"])
    with pytest.raises(AssertionError, match="ended with 1"):
        nsqd.start()
    assert "failed to instantiate nsqd - failed to build TLS config - tls: " in nsqd.log_text()
