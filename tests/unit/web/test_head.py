"""Heads of requests: what they say, and which are refused, with the status that Go gives them."""

from http import HTTPStatus

import pytest

from pumpline.web.head import CHUNKED, BadRequest, HeadCheck, parse_head


def head(line: str = "POST /pub?topic=t HTTP/1.1", *fields: str) -> bytes:
    return "\r\n".join((line, *fields, "", "")).encode("utf-8", "surrogateescape")


def test_what_a_head_says() -> None:
    raw = head(
        "PUT /a/b?c=d%20e&c=x HTTP/1.1", "HOST: h", "X-A:  1 ", "x-a: 2", "Content-Length: 7"
    )
    read = parse_head(raw)
    assert (read.method, read.target, read.path) == ("PUT", "/a/b?c=d%20e&c=x", "/a/b")
    assert (read.raw_query, read.query()) == ("c=d%20e&c=x", {"c": "d e"})
    assert read.values("X-A") == ["1", "2"]
    assert read.values("x-b") == []
    assert (read.version, read.body_bytes, read.keep_alive) == ("1.1", 7, True)


@pytest.mark.parametrize(
    ("target", "read"),
    [
        ("/ping", "/ping"),
        ("*", "*"),
        ("http://127.0.0.1:4151/stats?format=json", "/stats?format=json"),
        ("http://127.0.0.1", "/"),
        ("http://[/ping", "http://[/ping"),
    ],
)
def test_a_target_may_be_a_whole_url(target: str, read: str) -> None:
    assert parse_head(head(f"OPTIONS {target} HTTP/1.1")).target == read


@pytest.mark.parametrize(
    ("version", "fields", "kept"),
    [
        ("1.1", (), True),
        ("1.1", ("Connection: keep-alive",), True),
        ("1.1", ("Connection: Close",), False),
        ("1.1", ("Connection: x, close",), False),
        ("1.1", ("Connection: x", "Connection: close"), False),
        ("1.1", ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"), True),
        ("1.0", (), False),
        ("1.0", ("Connection: keep-alive",), True),
        ("1.0", ("Connection: keep-alive, close",), False),
    ],
)
def test_whether_there_may_be_another_request(
    version: str, fields: tuple[str, ...], kept: bool
) -> None:
    assert parse_head(head(f"GET / HTTP/{version}", *fields)).keep_alive is kept


@pytest.mark.parametrize(
    ("fields", "body_bytes"),
    [
        ((), 0),
        (("Content-Length: 0",), 0),
        (("Content-Length: 12 ",), 12),
        (("Content-Length: 12", "content-length:12", "CONTENT-LENGTH: \t12"), 12),
        (("Transfer-Encoding: chunked",), CHUNKED),
        (("Transfer-Encoding: Chunked",), CHUNKED),
        (("Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3"), 3),
        (("Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked"), CHUNKED),
    ],
)
def test_how_long_the_body_is(fields: tuple[str, ...], body_bytes: int) -> None:
    assert parse_head(head("POST / HTTP/1.1", *fields)).body_bytes == body_bytes


REFUSED = [
    (head("GET / HTTP/1.1", "Content-Length: 1", "Content-Length: 2"), 400),
    (head("GET / HTTP/1.1", "Content-Length: 1, 1"), 400),
    (head("GET / HTTP/1.1", "Content-Length: +1"), 400),
    (head("GET / HTTP/1.1", "Content-Length: 1_0"), 400),
    (head("GET / HTTP/1.1", "Content-Length:"), 400),
    (head("GET / HTTP/1.1", f"Content-Length: {10**30}"), 400),
    (head("GET / HTTP/1.1", "Transfer-Encoding: chunked", "Content-Length: 1"), 400),
    (head("GET / HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
    (head("GET / HTTP/1.0", "Transfer-Encoding: chunked"), 400),
    (head("GET / HTTP/1.1", "Transfer-Encoding: gzip"), 501),
    (head("GET / HTTP/1.1", "Transfer-Encoding: gzip, chunked"), 501),
    (head("GET / HTTP/1.1", "Transfer-Encoding: chunked, chunked"), 501),
    (head("GET / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 501),
    (head("GET / HTTP/1.1", "Transfer-Encoding: identity", "Content-Length: 1"), 501),
    (head("GET / HTTP/0.9"), 505),
    (head("GET / HTTP/2.0"), 505),
    (head("PRI * HTTP/2.0"), 505),
    (head("GET /"), 505),
    (head("GET / HTTP/1.2"), 400),
    (head("GET / HTTP/1.1 more"), 400),
    (head("get / HTTP/1.1"), 400),
    (head("GET /a b HTTP/1.1"), 400),
    (head("GET /\udcff HTTP/1.1"), 400),
    (head("GET / HTTP/1.1", "X : 1"), 400),
    (head("GET / HTTP/1.1", "X: \0"), 400),
    (head("GET / HTTP/1.1", "X: a", " folded"), 400),
    (head("GET / HTTP/1.1", "X: a\nY: b"), 400),
]


@pytest.mark.parametrize(("raw", "status"), REFUSED)
def test_what_is_refused(raw: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(raw)
    assert refused.value.status == status
    assert refused.value.status in HTTPStatus
    assert len(refused.value.reason) < 100


@pytest.mark.parametrize(("raw", "status"), REFUSED)
def test_what_is_refused_early_is_refused_alike_in_the_end(raw: bytes, status: int) -> None:
    check = HeadCheck()
    try:
        for at in range(1, len(raw) - 1):
            check.feed(raw[:at])
    except BadRequest as error:
        assert error.status == status


def test_a_good_head_is_never_refused_early() -> None:
    check = HeadCheck()
    good = head("POST / HTTP/1.1", "Host: h", "Content-Length: 1", "Content-Length: 1", "X: y")
    for at in range(1, len(good) - 1):
        check.feed(good[:at])


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02", b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\n"])
def test_what_will_never_be_a_head_is_found_out_early(garbage: bytes) -> None:
    with pytest.raises(BadRequest):
        HeadCheck().feed(garbage)


def test_the_first_of_several_expectations_counts() -> None:
    read = parse_head(head("POST / HTTP/1.1", "Expect: 100-Continue", "Expect: x"))
    assert read.expectation_is_met and read.waits_to_go_on
    assert not parse_head(head("POST / HTTP/1.1", "Expect: x")).expectation_is_met
    assert not parse_head(head("POST / HTTP/1.0", "Expect: 100-continue")).waits_to_go_on
