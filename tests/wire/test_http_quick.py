"""Publishers that keep a connection open: answered in order, with the bytes of the long way, and
free to say something else at any moment."""

import re
import socket
from itertools import pairwise

import pytest
from daemons import Nsqd

from pumpline.broker.http_quick import plain_publish

from .admin import act, topic_stats
from .session import Connect, bodies
from .web import read_to_end, send_raw

MSG_MAX = 1000
NSQD_FLAGS = (f"--max-msg-size={MSG_MAX}",)
LAST = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def pub(topic: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /pub?topic={topic} HTTP/1.1", "Host: x", *headers]
    return ("\r\n".join(lines) + f"\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


def replies(raw: socket.socket) -> list[bytes]:
    """Everything until the server closes, cut at the status lines, without dates."""
    text = re.sub(rb"Date: [^\r]*\r\n", b"", read_to_end(raw))
    starts = [match.start() for match in re.finditer(rb"HTTP/1\.1 \d", text)]
    return [text[a:b] for a, b in pairwise([*starts, len(text)])]


def published(connect: Connect, topic: str, count: int) -> list[bytes]:
    session = connect()
    session.subscribe(topic, "ch", ready=count)
    return bodies(session.messages(count))


def test_the_reply_is_the_one_of_the_long_way(nsqd: Nsqd, topic: str) -> None:
    (long,) = replies(send_raw(nsqd, pub(topic, b"a", "Connection: close")))
    short, ping = replies(send_raw(nsqd, pub(topic, b"b") + LAST))
    assert short == long.replace(b"Connection: close\r\n", b"")
    assert ping.endswith(b"OK")


def test_requests_in_one_packet_are_answered_in_order(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    sent = [b"%d" % number for number in range(200)]
    raw = send_raw(nsqd, b"".join(pub(topic, body) for body in sent) + LAST)
    answers = replies(raw)
    assert [answer[-2:] for answer in answers] == [b"OK"] * 201
    assert published(connect, topic, 200) == sent


@pytest.mark.parametrize("cut", [1, 20, 60, -3])
def test_a_request_in_pieces_is_put_together(
    nsqd: Nsqd, connect: Connect, topic: str, cut: int
) -> None:
    whole = pub(topic, b"first") + pub(topic, b"second")
    with nsqd_socket(nsqd) as raw:
        raw.sendall(whole + whole[:cut])
        raw.sendall(whole[cut:] + LAST)
        assert len(replies(raw)) == 5
    assert published(connect, topic, 4) == [b"first", b"second"] * 2


def test_an_error_in_the_middle_is_the_one_of_the_long_way(nsqd: Nsqd, topic: str) -> None:
    requests = [pub(topic, b"a"), pub(topic, b"x" * (MSG_MAX + 1)), pub(topic, b"b"), LAST]
    first, error, third, _ = replies(send_raw(nsqd, b"".join(requests)))
    assert b" 200 OK" in first
    assert b" 413 " in error
    assert b"MSG_TOO_BIG" in error
    assert b" 200 OK" in third
    assert topic_stats(nsqd, topic)["message_count"] == 2


def test_a_topic_deleted_meanwhile_is_made_again(nsqd: Nsqd, topic: str) -> None:
    with nsqd_socket(nsqd) as raw:
        raw.sendall(pub(topic, b"a"))
        assert raw.recv(1000).endswith(b"OK")
        act(nsqd, "/topic/delete", topic=topic)
        raw.sendall(pub(topic, b"b") + LAST)
        assert len(replies(raw)) == 2
    assert topic_stats(nsqd, topic)["message_count"] == 1


def test_a_client_that_says_no_more_still_gets_its_answer(nsqd: Nsqd, topic: str) -> None:
    with nsqd_socket(nsqd) as raw:
        raw.sendall(pub(topic, b"a") * 3)
        raw.shutdown(socket.SHUT_WR)
        assert [answer[-2:] for answer in replies(raw)] == [b"OK"] * 3


def test_a_client_that_does_not_read_does_not_fill_the_memory(nsqd: Nsqd, topic: str) -> None:
    many = pub(topic, b"a") * 1000
    with nsqd_socket(nsqd) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(1.0)
        with pytest.raises(TimeoutError):
            for _ in range(1000):  # 80 MB, for 150 MB of replies
                raw.sendall(many)
    assert topic_stats(nsqd, topic)["message_count"] < 500_000


@pytest.mark.parametrize(
    "head",
    [
        b"POST /pub?topic=t HTTP/1.0\r\nContent-Length: 1",
        b"POST /pub?topic=t&defer=5 HTTP/1.1\r\nContent-Length: 1",
        b"POST /pub?topic=t%23ephemeral HTTP/1.1\r\nContent-Length: 1",
        b"POST /pub?topic=" + b"t" * 65 + b" HTTP/1.1\r\nContent-Length: 1",
        b"GET /pub?topic=t HTTP/1.1\r\nContent-Length: 1",
        b"POST /pub?topic=t HTTP/1.1",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: +1",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nConnection: close",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nUpgrade: h2c",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\n folded: x",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length : 1",
        b"POST /pub?topic=t HTTP/1.1\r\nX: a\nContent-Length: 1",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nX: \x00",
        b"",
    ],
)
def test_only_a_plain_head_takes_the_short_way(head: bytes) -> None:
    assert plain_publish(head) is None


def test_a_plain_head_tells_topic_and_length() -> None:
    head = (
        b"POST /pub?topic=a.b-c_9 HTTP/1.1\r\nhost: 127.0.0.1:4151\r\nuser-agent: curl/8\r\n"
        b"accept: */*\r\nCONTENT-LENGTH:  12 \r\nconnection: Keep-Alive"
    )
    assert plain_publish(head) == ("a.b-c_9", 12)


def nsqd_socket(nsqd: Nsqd) -> socket.socket:
    return send_raw(nsqd, b"")
