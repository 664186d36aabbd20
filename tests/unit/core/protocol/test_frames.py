"""Frames have the documented bytes."""

from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES, encode_message
from pumpline.core.protocol import frames
from pumpline.core.protocol.errors import E_BAD_TOPIC, E_FIN_FAILED, E_INVALID, ProtocolError


def test_replies_are_a_size_a_type_and_their_text() -> None:
    assert frames.OK == b"\0\0\0\6\0\0\0\0OK"
    assert frames.HEARTBEAT == b"\0\0\0\x0f\0\0\0\0_heartbeat_"
    assert frames.encode_frame(frames.ERROR, b"E_X") == b"\0\0\0\7\0\0\0\1E_X"


def test_a_message_is_its_time_attempts_id_and_body() -> None:
    message = encode_message(
        timestamp_ns=0x0102030405060708, attempts=0x1122, message_id=0xABC, body=b"body"
    )
    assert message == (b"\0\0\0\x22\0\0\0\2\1\2\3\4\5\6\7\10\x11\x220000000000000abcbody")
    assert len(message) == MESSAGE_OVERHEAD_BYTES + 4


def test_an_error_is_its_code_and_text_and_knows_whether_it_is_fatal() -> None:
    assert ProtocolError(E_INVALID).data == b"E_INVALID"
    assert ProtocolError(E_BAD_TOPIC, "PUB x").data == b"E_BAD_TOPIC PUB x"
    assert ProtocolError(E_BAD_TOPIC).fatal
    assert not ProtocolError(E_FIN_FAILED, "FIN 1 failed").fatal


def test_bytes_that_are_no_text_come_back_as_they_came() -> None:
    raw = b"\xff\xfe \xc3\xa9"
    error = ProtocolError(E_INVALID, raw.decode("utf-8", "surrogateescape"))
    assert error.data == b"E_INVALID " + raw
