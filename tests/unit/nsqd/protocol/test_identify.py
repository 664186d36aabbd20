"""IDENTIFY: each setting has its default, its range and its way to be turned off."""

import json

import pytest

from pumpline.core.protocol.errors import ProtocolError
from pumpline.nsqd.options import Options
from pumpline.nsqd.protocol.identify import default_client_options, parse, response

NS_PER_MS = 1_000_000
OPTIONS = Options(
    msg_timeout_ns=50_000 * NS_PER_MS,
    max_msg_timeout_ns=70_000 * NS_PER_MS,
    max_heartbeat_interval_ns=40_000 * NS_PER_MS,
    max_output_buffer_size=4096,
    output_buffer_timeout_ns=100 * NS_PER_MS,
    min_output_buffer_timeout_ns=20 * NS_PER_MS,
    max_output_buffer_timeout_ns=300 * NS_PER_MS,
    max_deflate_level=4,
)


def settings(**fields: object) -> dict[str, object]:
    parsed = parse(json.dumps(fields).encode(), OPTIONS)
    return {name: getattr(parsed, name) for name in parsed.__slots__}


def refusal(body: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse(body, OPTIONS)
    assert caught.value.fatal
    return str(caught.value)


@pytest.mark.parametrize("body", [b"{}", b"null", b' {"unknown": [1, {"a": null}]} '])
def test_a_client_that_asks_for_nothing_gets_the_defaults(body: bytes) -> None:
    parsed = parse(body, OPTIONS)
    assert (parsed.client_id, parsed.hostname, parsed.user_agent) == ("", "", "")
    assert not parsed.feature_negotiation
    assert parsed.heartbeat_ms == 30_000
    assert parsed.output_buffer_bytes == 16_384
    assert parsed.output_buffer_timeout_ms == 100
    assert parsed.msg_timeout_ms == 50_000
    assert parsed.sample_rate == 0
    assert parsed.deflate_level == 4


def test_before_identify_the_peer_names_the_client() -> None:
    defaults = default_client_options(OPTIONS, "10.0.0.1")
    assert (defaults.client_id, defaults.hostname) == ("10.0.0.1", "10.0.0.1")
    assert (defaults.msg_timeout_ms, defaults.output_buffer_timeout_ms) == (50_000, 100)


@pytest.mark.parametrize(
    ("field", "setting", "accepted", "refused", "text"),
    [
        (
            "heartbeat_interval",
            "heartbeat_ms",
            {0: 30_000, -1: -1, 1000: 1000, 40_000: 40_000},
            (1, 999, 40_001, -2),
            "heartbeat interval",
        ),
        (
            "output_buffer_size",
            "output_buffer_bytes",
            {0: 16_384, -1: 1, 64: 64, 4096: 4096},
            (1, 63, 4097, -2),
            "output buffer size",
        ),
        (
            "output_buffer_timeout",
            "output_buffer_timeout_ms",
            {0: 100, -1: 0, 20: 20, 300: 300},
            (1, 19, 301, -2),
            "output buffer timeout",
        ),
        ("sample_rate", "sample_rate", {0: 0, 1: 1, 99: 99}, (-1, 100), "sample rate"),
        (
            "msg_timeout",
            "msg_timeout_ms",
            {0: 50_000, 1000: 1000, 70_000: 70_000},
            (-1, 1, 999, 70_001),
            "msg timeout",
        ),
    ],
)
def test_numbers_have_ranges(
    field: str, setting: str, accepted: dict[int, int], refused: tuple[int, ...], text: str
) -> None:
    for asked, got in accepted.items():
        assert settings(**{field: asked})[setting] == got
    for asked in refused:
        body = json.dumps({field: asked}).encode()
        assert refusal(body) == f"E_BAD_BODY IDENTIFY {text} ({asked}) is invalid"


def test_without_an_output_buffer_there_is_nothing_to_wait_for() -> None:
    got = settings(output_buffer_size=-1, output_buffer_timeout=200)
    assert (got["output_buffer_bytes"], got["output_buffer_timeout_ms"]) == (1, 0)


def test_keys_match_whatever_their_case_and_null_is_no_value() -> None:
    got = settings(Client_ID="me", HOSTNAME="here", user_agent=None, MSG_TIMEOUT=2000)
    assert (got["client_id"], got["hostname"], got["user_agent"]) == ("me", "here", "")
    assert got["msg_timeout_ms"] == 2000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"\xff",
        b'{"client_id":"\xff"}',
        b'{"client_id":3}',
        b'{"feature_negotiation":1}',
        b'{"feature_negotiation":"true"}',
        b'{"msg_timeout":"2000"}',
        b'{"msg_timeout":2000.0}',
        b'{"msg_timeout":2e3}',
        b'{"msg_timeout":true}',
        b'{"msg_timeout":9223372036854775808}',
        b'{"sample_rate":2147483648}',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_go_cannot_decode_is_refused_in_its_words(body: bytes) -> None:
    assert refusal(body) == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_the_response_names_its_keys_in_nsqs_order() -> None:
    parsed = parse(b'{"feature_negotiation":true,"msg_timeout":2000,"sample_rate":5}', OPTIONS)
    answer = json.loads(response(parsed, OPTIONS))
    assert list(answer) == [
        "max_rdy_count",
        "version",
        "max_msg_timeout",
        "msg_timeout",
        "tls_v1",
        "deflate",
        "deflate_level",
        "max_deflate_level",
        "snappy",
        "sample_rate",
        "auth_required",
        "output_buffer_size",
        "output_buffer_timeout",
        "topology_region",
        "topology_zone",
    ]
    assert (answer["max_msg_timeout"], answer["msg_timeout"]) == (70_000, 2000)
    assert (answer["sample_rate"], answer["auth_required"]) == (5, False)
    assert (answer["deflate_level"], answer["max_deflate_level"]) == (4, 4)
