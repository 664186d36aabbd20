"""The file of tokens: what it may hold, and what is wrong with it otherwise."""

from pathlib import Path

import pytest

from pumpline.core.text.addresses import is_loopback
from pumpline.nsqd.security.http_tokens import (
    ACCESS_TOKENS_MAX,
    FILE_BYTES_MAX,
    AccessTokenError,
    Gate,
    read_access_tokens,
)

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "read_only"),
    [
        (TOKEN, [False]),
        (f"{TOKEN}\n", [False]),
        (f"  {TOKEN}\tread \r\n\n# the old one\n{TOKEN[::-1]}\n", [True, False]),
        ("A-._~+/=zZ9abcdef", [False]),
    ],
)
def test_one_token_a_line(tmp_path: Path, text: str, read_only: list[bool]) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    assert [token.read_only for token in read_access_tokens(str(path))] == read_only


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "no token in"),
        (b"# none\n\n", "no token in"),
        (b"short", "fewer than 16 characters"),
        (b"x\n" + TOKEN.encode() + b" write", "line 2 is not"),
        (TOKEN.encode() + b" write", "line 1 is not `<token>` or `<token> read`"),
        (TOKEN.encode() + b" read read", "is not"),
        (b'"' + TOKEN.encode() + b'"', "has characters other than"),
        (b"\xff" * 16, "has characters other than"),
        (TOKEN.encode() + b"\0", "has characters other than"),
        ((TOKEN.encode() + b"\n") * (ACCESS_TOKENS_MAX + 1), "more than 100 tokens"),
        (b"#" * (FILE_BYTES_MAX + 1), "larger than 65536 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_a_token(
    tmp_path: Path, data: bytes, fault: str
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(data)
    with pytest.raises(AccessTokenError, match=fault) as raised:
        read_access_tokens(str(path))
    assert TOKEN not in str(raised.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AccessTokenError, match=r"open .*/none: no such file or directory"):
        read_access_tokens(str(tmp_path / "none"))
    with pytest.raises(AccessTokenError, match=r"open .*: is a directory"):
        read_access_tokens(str(tmp_path))


def test_file_that_everybody_can_read_is_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o640)
    read_access_tokens(str(path))
    assert caplog.messages == []
    path.chmod(0o644)
    read_access_tokens(str(path))
    assert caplog.messages == [f"HTTP: {path} can be read by every user of this machine"]


def test_tokens_stay_when_they_cannot_be_read_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    gate = Gate(token_path=str(path), certificates=False)
    before = gate._access_tokens
    path.write_text("short")
    gate.reload()
    assert gate._access_tokens == before
    said = f"HTTP: tokens not changed - {path}: the token of line 1 has"
    assert caplog.messages[-1].startswith(said)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_only_this_machine_reaches_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
