"""Protocol V1: every command and every error, however the bytes are cut."""

import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.protocol.errors import ProtocolError
from pumpline.core.protocol.frames import MAGIC_V1
from pumpline.nsqlookupd.protocol import (
    BODY_BYTES_MAX,
    LINE_BYTES_MAX,
    Event,
    Identify,
    Ping,
    Register,
    Unregister,
    V1Reader,
    decode_identity,
    reply,
)

WORDS: dict[str, Any] = {
    "version": "1.3.0",
    "tcp_port": 4150,
    "http_port": 4151,
    "broadcast_address": "node",
    "hostname": "host",
}


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def identify(**changes: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps({**WORDS, **changes}).encode())


def read(*pieces: bytes) -> tuple[list[Event], str | None]:
    """All events, and the error that ended it, if one did."""
    reader = V1Reader()
    events: list[Event] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                events.append(event)
        reader.end()
    except ProtocolError as error:
        return events, error.data.decode("latin-1")
    return events, None


def error_of(data: bytes) -> str | None:
    return read(MAGIC_V1 + data)[1]


def error_after_identify(data: bytes) -> str | None:
    events, error = read(MAGIC_V1 + identify() + data)
    assert isinstance(events[0], Identify)
    return error


def test_a_whole_session() -> None:
    lines = b"REGISTER t c\nREGISTER u\nPING\nUNREGISTER t c\nUNREGISTER u\n"
    events, error = read(MAGIC_V1 + b"PING\n" + identify() + lines)
    assert error is None
    assert [type(event) for event in events[:2]] == [Ping, Identify]
    assert events[2:] == [
        Register("t", "c"),
        Register("u", ""),
        Ping(),
        Unregister("t", "c"),
        Unregister("u", ""),
    ]


@pytest.mark.parametrize(
    "line", [b"PING\r\n", b"  PING  \n", b"\tPING\v\f\n", b"PING and more\n", b"\xc2\xa0PING\n"]
)
def test_space_around_a_line_and_further_words_are_ignored(line: bytes) -> None:
    assert read(MAGIC_V1 + line) == ([Ping()], None)


@pytest.mark.parametrize("magic", [b"  V2", b"PING", b"\0\0\0\0"])
def test_another_protocol_is_refused(magic: bytes) -> None:
    assert read(magic) == ([], "E_BAD_PROTOCOL")


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        (b"\n", ""),
        (b" \n", ""),
        (b"ping\n", "ping"),
        (b"FOO bar\n", "FOO"),
        (b"PING\tx\n", "PING\tx"),
        (b"\x1cPING\n", "\x1cPING"),
        (b"\xff\xfe\n", "\xff\xfe"),
    ],
)
def test_an_unknown_verb_is_named_as_it_came(line: bytes, verb: str) -> None:
    assert error_of(line) == f"E_INVALID invalid command {verb}"


@pytest.mark.parametrize("line", [b"REGISTER t c\n", b"REGISTER\n", b"UNREGISTER t\n"])
def test_a_node_must_identify_first(line: bytes) -> None:
    assert error_of(line) == "E_INVALID client must IDENTIFY"


@pytest.mark.parametrize("verb", ["REGISTER", "UNREGISTER"])
@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ("", "E_INVALID {} insufficient number of params"),
        (" b@d", "E_BAD_TOPIC {} topic name 'b@d' is not valid"),
        ("  t", "E_BAD_TOPIC {} topic name '' is not valid"),
        (" t b@d", "E_BAD_CHANNEL {} channel name 'b@d' is not valid"),
    ],
)
def test_names_are_checked(verb: str, parameters: str, error: str) -> None:
    assert error_after_identify(f"{verb}{parameters}\n".encode()) == error.format(verb)


@pytest.mark.parametrize("line", [b"REGISTER t  c\n", b"REGISTER t \n"])
def test_an_empty_channel_is_none(line: bytes) -> None:
    events, error = read(MAGIC_V1 + identify() + line)
    assert (events[1:], error) == ([Register("t", "")], None)


def test_a_second_identify_is_refused_before_its_body() -> None:
    assert error_after_identify(b"IDENTIFY\n") == "E_INVALID cannot IDENTIFY again"


@pytest.mark.parametrize(
    ("rest", "what"),
    [(b"", "body size"), (b"\0\0", "body size"), (b"\0\0\0\5{}", "body"), (b"\0\0\0\5", "body")],
)
def test_a_body_that_ends_early(rest: bytes, what: str) -> None:
    assert error_of(b"IDENTIFY\n" + rest) == f"E_BAD_BODY IDENTIFY failed to read {what}"


@pytest.mark.parametrize("size", [-1, -(2**31)])
def test_a_negative_body_size_is_an_error(size: int) -> None:
    error = error_of(b"IDENTIFY\n" + struct.pack(">i", size))
    assert error == f"E_BAD_BODY IDENTIFY invalid body size {size}"


@pytest.mark.parametrize("size", [BODY_BYTES_MAX + 1, 2**31 - 1])
def test_a_body_over_the_limit_is_refused_by_its_size_alone(size: int) -> None:
    error = error_of(b"IDENTIFY\n" + struct.pack(">i", size))
    assert error == f"E_BAD_BODY IDENTIFY body too big {size} > {BODY_BYTES_MAX}"


def test_a_body_of_the_largest_size_is_read() -> None:
    body = json.dumps(WORDS).encode().ljust(BODY_BYTES_MAX)
    events, error = read(MAGIC_V1 + b"IDENTIFY\n" + sized(body))
    assert (len(events), error) == (1, None)


def test_a_line_over_the_limit_is_refused_before_it_ends() -> None:
    assert error_of(b"x" * (LINE_BYTES_MAX - 1)) is None
    assert error_of(b"x" * LINE_BYTES_MAX) == f"E_INVALID line too long > {LINE_BYTES_MAX}"


def test_an_end_within_a_line_is_no_error() -> None:
    assert read(MAGIC_V1 + b"PING\nPIN") == ([Ping()], None)
    assert read(b"  ") == ([], None)


@given(st.data())
def test_cutting_the_bytes_changes_nothing(data: st.DataObject) -> None:
    commands = [b"PING\n", identify(), b"REGISTER t c\n", b"UNREGISTER t\r\n", b"NO\n", b"\xff"]
    stream = MAGIC_V1 + b"".join(data.draw(st.lists(st.sampled_from(commands), max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*pieces) == read(stream)


@given(st.binary(max_size=200))
def test_any_bytes_give_events_or_the_one_error(data: bytes) -> None:
    read(MAGIC_V1 + data)
    read(MAGIC_V1 + b"IDENTIFY\n" + sized(data))


def test_what_a_node_says_of_itself() -> None:
    body = {**WORDS, "topology_zone": "z", "topology_region": "r", "other": [1]}
    identity = decode_identity(json.dumps(body).encode())
    assert (identity.broadcast_address, identity.hostname) == ("node", "host")
    assert (identity.tcp_port, identity.http_port, identity.version) == (4150, 4151, "1.3.0")
    assert (identity.topology_zone, identity.topology_region) == ("z", "r")


def test_keys_are_read_in_any_case_and_bad_text_is_replaced() -> None:
    body = rb'{"VERSION":"\ud800","Tcp_Port":1,"http_port":2,"broadcast_address":"' + b'\xff"}'
    identity = decode_identity(body)
    assert (identity.version, identity.tcp_port) == ("\ufffd", 1)
    assert (identity.broadcast_address, identity.hostname) == ("\ufffd", "")


@pytest.mark.parametrize("key", ["version", "tcp_port", "http_port", "broadcast_address"])
@pytest.mark.parametrize("value", ["absent", None, "zero"])
def test_a_node_must_say_how_to_reach_it(key: str, value: str | None) -> None:
    words = dict(WORDS)
    if value == "absent":
        del words[key]
    else:
        words[key] = None if value is None else type(words[key])()
    error = error_of(b"IDENTIFY\n" + sized(json.dumps(words).encode()))
    assert error == "E_BAD_BODY IDENTIFY missing fields"


def test_null_says_nothing() -> None:
    assert error_of(b"IDENTIFY\n" + sized(b"null")) == "E_BAD_BODY IDENTIFY missing fields"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"{} x",
        b"\xff",
        b'{"tcp_port":"1"}',
        b'{"tcp_port":1.0}',
        b'{"tcp_port":1e0}',
        b'{"tcp_port":01}',
        b'{"tcp_port":NaN}',
        b'{"tcp_port":true}',
        b'{"tcp_port":9223372036854775808}',
        b'{"version":1}',
        b'{"hostname":[]}',
        b'{"remote_address":5}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_such_json(body: bytes) -> None:
    error = error_of(b"IDENTIFY\n" + sized(body))
    assert error == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_a_reply_has_its_size_first() -> None:
    assert reply(b"OK") == b"\0\0\0\2OK"
