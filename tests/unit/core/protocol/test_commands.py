"""Commands as they go over the wire."""

from pumpline.core.protocol import commands

ID = b"0123456789abcdef"


def test_lines() -> None:
    assert commands.sub("t", "c") == b"SUB t c\n"
    assert commands.rdy(25) == b"RDY 25\n"
    assert commands.fin(ID) == b"FIN 0123456789abcdef\n"
    assert commands.req(ID, 1500) == b"REQ 0123456789abcdef 1500\n"
    assert commands.touch(ID) == b"TOUCH 0123456789abcdef\n"


def test_bodies() -> None:
    assert commands.identify(b"{}") == b"IDENTIFY\n\0\0\0\2{}"
    assert commands.auth(b"secret") == b"AUTH\n\0\0\0\6secret"
    assert commands.pub("t", b"body") == b"PUB t\n\0\0\0\4body"
    assert commands.dpub("t", 250, b"body") == b"DPUB t 250\n\0\0\0\4body"


def test_mpub_counts_and_sizes() -> None:
    command = commands.mpub("t", [b"a", b"bcd", b"ef"])
    body = b"\0\0\0\3" + b"\0\0\0\1a" + b"\0\0\0\3bcd" + b"\0\0\0\2ef"
    assert command == b"MPUB t\n" + len(body).to_bytes(4) + body
