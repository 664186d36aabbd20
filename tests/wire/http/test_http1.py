"""HTTP/1.1 as Go's net/http speaks it under NSQ: framing, versions, redirects."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import topic_stats
from tests.kit.wire.web import ask, read_to_end, send_raw

CLOSE = b"Connection: close\r\n\r\n"


def pub(topic: str, *headers: str, version: str = "1.1", body: bytes = b"x") -> bytes:
    first = f"POST /pub?topic={topic} HTTP/{version}"
    lines = [first, "Host: localhost", *headers, "Connection: close"]
    return "\r\n".join((*lines, "", "")).encode() + body


def answer_to(nsqd: Nsqd, data: bytes) -> tuple[int, bytes]:
    head, _, body = read_to_end(send_raw(nsqd, data)).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_length_may_be_said_twice(nsqd: Nsqd, topic: str) -> None:
    twice = pub(topic, "Content-Length: 1", "content-length: 1")
    assert answer_to(nsqd, twice) == (200, b"OK")
    assert topic_stats(nsqd, topic)["message_count"] == 1


def test_different_lengths_are_refused(nsqd: Nsqd, topic: str) -> None:
    assert answer_to(nsqd, pub(topic, "Content-Length: 1", "Content-Length: 2"))[0] == 400


@pytest.mark.parametrize("coding", ["gzip", "gzip, chunked", "identity", "chunked, chunked"])
def test_transfer_encodings_but_chunked_are_not_implemented(
    nsqd: Nsqd, topic: str, coding: str
) -> None:
    assert answer_to(nsqd, pub(topic, f"Transfer-Encoding: {coding}"))[0] == 501


def test_chunks_in_http_1_0_are_refused(nsqd: Nsqd, topic: str) -> None:
    chunks = b"1\r\nx\r\n0\r\n\r\n"
    chunked = pub(topic, "Transfer-Encoding: chunked", version="1.0", body=chunks)
    assert answer_to(nsqd, chunked)[0] == 400


@pytest.mark.parametrize("version", ["0.9", "2.0"])
def test_other_versions_are_refused(nsqd: Nsqd, version: str) -> None:
    request = f"GET /ping HTTP/{version}\r\nHost: localhost\r\n".encode() + CLOSE
    assert answer_to(nsqd, request)[0] == 505


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/ping/", "/ping"),
        ("/PING?a=b", "/ping?a=b"),
        ('/ping/?a="<>&', "/ping?a=&#34;&lt;&gt;&amp;"),
    ],
)
def test_the_right_path_is_a_link(nsqd: Nsqd, target: str, location: str) -> None:
    answer = ask(nsqd, "GET", target)
    assert answer.status == 301
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.body.decode() == f'<a href="{location}">Moved Permanently</a>.\n\n'


def test_a_redirect_of_a_post_has_no_body(nsqd: Nsqd, topic: str) -> None:
    answer = ask(nsqd, "POST", f"/pub/?topic={topic}", b"x")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (307, b"", None)


def test_options_of_the_server_itself(nsqd: Nsqd) -> None:
    assert answer_to(nsqd, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + CLOSE) == (200, b"")


@pytest.mark.deviation  # the original takes them
@pytest.mark.parametrize(
    "head",
    [
        b"GET /ping HTTP/1.1\nHost: localhost\n\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length:\r\n\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_could_smuggle_a_request_is_refused(nsqd: Nsqd, head: bytes) -> None:
    assert answer_to(nsqd, head)[0] == 400
