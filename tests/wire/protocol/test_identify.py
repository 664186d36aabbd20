"""IDENTIFY: what is accepted, what is refused, what is answered, what is remembered."""

import json
import zlib
from typing import Any

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import identify, pub, sized, sub
from tests.kit.wire.session import FRAME_ERROR, FRAME_RESPONSE, OK, Connect, Session

RESPONSE_DEFAULTS = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}

# Servers later than 1.3.0 add these at the end.
LATER_KEYS = ["topology_region", "topology_zone"]


def negotiate(session: Session, **fields: object) -> dict[str, Any]:
    frame = session.request(identify({"feature_negotiation": True, **fields}))
    assert frame.type == FRAME_RESPONSE, frame
    answer: dict[str, Any] = json.loads(frame.data)
    return {key: value for key, value in answer.items() if key not in LATER_KEYS}


def client_stats(nsqd: Nsqd, session: Session, topic: str) -> dict[str, Any]:
    assert session.request(sub(topic, "ch")) == OK
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    return dict(client)


def test_response_has_every_key_in_order_and_no_spaces(connect: Connect) -> None:
    frame = connect().request(identify({"feature_negotiation": True}))
    assert frame.type == FRAME_RESPONSE
    answer = json.loads(frame.data)
    assert frame.data == json.dumps(answer, separators=(",", ":")).encode()
    assert [*answer][: len(RESPONSE_DEFAULTS)] == [*RESPONSE_DEFAULTS]
    assert [*answer][len(RESPONSE_DEFAULTS) :] in ([], LATER_KEYS)
    assert answer.items() >= RESPONSE_DEFAULTS.items()


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"msg_timeout": 0}, {"msg_timeout": 60000}),
        ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
        ({"msg_timeout": 900000}, {"msg_timeout": 900000}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
        ({"output_buffer_size": 0}, {"output_buffer_size": 16384}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        (
            {"output_buffer_size": -1, "output_buffer_timeout": 100},
            {"output_buffer_size": 1, "output_buffer_timeout": 0},
        ),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
        ({"output_buffer_timeout": 30000}, {"output_buffer_timeout": 30000}),
        ({"output_buffer_timeout": 0}, {"output_buffer_timeout": 250}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
        ({"heartbeat_interval": -1}, {}),
        ({"heartbeat_interval": 0}, {}),
        ({"heartbeat_interval": 1000}, {}),
        ({"heartbeat_interval": 60000}, {}),
        ({"tls_v1": True}, {"tls_v1": False}),
        ({"deflate_level": 3}, {"deflate_level": 6}),
        ({"deflate_level": -3}, {"deflate_level": 6}),
        ({"no_such_key": [1, {"a": None}]}, {}),
        ({"msg_timeout": None, "client_id": None, "deflate": None}, {}),
        ({"short_id": "a", "long_id": "b"}, {}),
    ],
    ids=str,
)
def test_accepted_values(
    connect: Connect, asked: dict[str, object], answered: dict[str, object]
) -> None:
    answer = negotiate(connect(), **asked)
    assert answer == {**RESPONSE_DEFAULTS, **answered}


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("heartbeat_interval", "heartbeat interval", [-2, 1, 999, 60001]),
        ("output_buffer_timeout", "output buffer timeout", [-2, 1, 24, 30001]),
        ("output_buffer_size", "output buffer size", [-2, 1, 63, 65537]),
        ("sample_rate", "sample rate", [-1, 100]),
        ("msg_timeout", "msg timeout", [-1, 1, 999, 900001]),
    ],
)
def test_values_out_of_range_are_refused(
    connect: Connect, field: str, text: str, values: list[int]
) -> None:
    for value in values:
        session = connect()
        session.send(identify({field: value}))
        expected = f"E_BAD_BODY IDENTIFY {text} ({value}) is invalid".encode()
        assert session.until_closed() == [(FRAME_ERROR, expected)]


def test_of_several_bad_values_the_first_checked_is_named(connect: Connect) -> None:
    order = ["heartbeat_interval", "output_buffer_timeout", "output_buffer_size", "sample_rate"]
    names = ["heartbeat interval", "output buffer timeout", "output buffer size", "sample rate"]
    for position, name in enumerate(names):
        session = connect()
        session.send(identify(dict.fromkeys(["msg_timeout", *order[position:]], -7)))
        expected = f"E_BAD_BODY IDENTIFY {name} (-7) is invalid".encode()
        assert session.until_closed() == [(FRAME_ERROR, expected)]


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"{",
        b"{}}",
        b"{'client_id':'a'}",
        b"[]",
        b'"text"',
        b"1",
        b"true",
        b'{"msg_timeout":1000.0}',
        b'{"msg_timeout":1e3}',
        b'{"msg_timeout":"1000"}',
        b'{"heartbeat_interval":1000.5}',
        b'{"sample_rate":99999999999999}',
        b'{"client_id":1}',
        b'{"feature_negotiation":1}',
        b'{"feature_negotiation":"true"}',
        b'{"deflate":0}',
        b'{"user_agent":["a"]}',
        b'{"msg_timeout":NaN}',
        b'{"msg_timeout":01000}',
    ],
    ids=repr,
)
def test_bodies_that_do_not_decode_are_refused(connect: Connect, body: bytes) -> None:
    session = connect()
    session.send(identify(body))
    expected = b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert session.until_closed() == [(FRAME_ERROR, expected)]


@pytest.mark.parametrize("body", [b"null", b"{}", b" {} \n", b'{"x":1}'], ids=repr)
def test_bodies_that_ask_for_nothing_are_answered_ok(
    connect: Connect, topic: str, body: bytes
) -> None:
    session = connect()
    assert session.request(identify(body)) == OK
    assert session.request(sub(topic, "ch")) == OK


def test_keys_match_in_any_case(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    body = {"Feature_Negotiation": True, "MSG_TIMEOUT": 5000, "Client_ID": "shouty"}
    answer = json.loads(session.request(identify(body)).data)
    assert answer["msg_timeout"] == 5000
    assert client_stats(nsqd, session, topic)["client_id"] == "shouty"


def test_last_of_repeated_keys_counts(connect: Connect) -> None:
    body = b'{"feature_negotiation":true,"msg_timeout":2000,"msg_timeout":3000}'
    assert json.loads(connect().request(identify(body)).data)["msg_timeout"] == 3000


@pytest.mark.parametrize(
    "fields", [{}, {"feature_negotiation": False}, {"feature_negotiation": None}]
)
def test_without_feature_negotiation_nothing_is_negotiated(
    connect: Connect, topic: str, fields: dict[str, object]
) -> None:
    session = connect()
    wishes = {"deflate": True, "snappy": True, "tls_v1": True, "msg_timeout": 1000}
    assert session.request(identify({**fields, **wishes})) == OK
    assert session.request(pub(topic, b"plain")) == OK


def test_range_checks_apply_without_feature_negotiation(connect: Connect) -> None:
    session = connect()
    session.send(identify({"msg_timeout": 1}))
    assert session.until_closed()[0].type == FRAME_ERROR


def test_names_given_appear_in_stats(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    fields = {"client_id": "c-é", "hostname": "h", "user_agent": "agent/1.0", "sample_rate": 7}
    assert session.request(identify(fields)) == OK
    client = client_stats(nsqd, session, topic)
    assert {key: client[key] for key in fields} == fields
    assert client["version"] == "V2"
    assert (client["deflate"], client["snappy"], client["tls"]) == (False, False, False)


def test_names_not_given_become_empty(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(identify({})) == OK
    client = client_stats(nsqd, session, topic)
    assert (client["client_id"], client["hostname"], client["user_agent"]) == ("", "", "")


def test_without_identify_the_peer_address_names_the_client(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    client = client_stats(nsqd, session, topic)
    assert (client["client_id"], client["hostname"]) == ("127.0.0.1", "127.0.0.1")
    port = session.raw.socket.getsockname()[1]
    assert client["remote_address"] == f"127.0.0.1:{port}"


def test_identify_may_be_repeated_before_sub(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(identify({"client_id": "first", "msg_timeout": 2000})) == OK
    answer = negotiate(session, client_id="second", msg_timeout=3000)
    assert answer["msg_timeout"] == 3000
    assert client_stats(nsqd, session, topic)["client_id"] == "second"


def test_identify_after_publishing_is_accepted(connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(pub(topic, b"x")) == OK
    assert session.request(identify({})) == OK


def receive(session: Session, size: int) -> bytes:
    """Exactly so many bytes: what follows them may be compressed."""
    data = b""
    while len(data) < size:
        chunk = session.raw.socket.recv(size - len(data))
        assert chunk, "closed"
        data += chunk
    return data


@pytest.mark.parametrize(("level", "granted"), [(0, 6), (1, 1), (6, 6), (9, 6)])
def test_deflate_upgrade(connect: Connect, topic: str, level: int, granted: int) -> None:
    session = connect()
    wishes = {"feature_negotiation": True, "deflate": True, "deflate_level": level}
    session.send(identify(wishes))
    answer = json.loads(receive(session, int.from_bytes(receive(session, 4)))[4:])
    assert (answer["deflate"], answer["deflate_level"]) == (True, granted)
    deflater = zlib.compressobj(wbits=-15)
    inflater = zlib.decompressobj(wbits=-15)
    ok_frame = sized(b"\0\0\0\0OK")

    def receive_ok() -> bytes:
        plain = b""
        while len(plain) < len(ok_frame):
            plain += inflater.decompress(receive(session, 1))
        return plain

    assert receive_ok() == ok_frame
    packed = deflater.compress(pub(topic, b"squeezed" * 100))
    session.send(packed + deflater.flush(zlib.Z_SYNC_FLUSH))
    assert receive_ok() == ok_frame
