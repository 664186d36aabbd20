"""Publishers that keep a connection open: answered in order, by the same bytes, and
free to say something else at any moment."""

import re
import socket
from contextlib import closing, suppress
from itertools import pairwise

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_topic, topic_stats
from tests.kit.wire.commands import mpub_body
from tests.kit.wire.session import Connect, bodies
from tests.kit.wire.web import ask, ask_on, open_connection, read_to_end, send_raw

MSG_MAX = 1000
NSQD_FLAGS = (f"--max-msg-size={MSG_MAX}",)
LAST = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def pub(topic: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /pub?topic={topic} HTTP/1.1", "Host: localhost", *headers]
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


def test_the_reply_is_the_same_but_for_how_the_connection_goes_on(nsqd: Nsqd, topic: str) -> None:
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
    "query", ["topic={}&defer=5", "topic={}%23ephemeral", "topic={}&topic={}", "x=1&topic={}"]
)
def test_what_is_not_plain_is_published_all_the_same(nsqd: Nsqd, topic: str, query: str) -> None:
    unusual = pub(topic, b"a").replace(
        f"topic={topic}".encode(), query.format(topic, topic).encode()
    )
    raw = send_raw(nsqd, pub(topic, b"a") + unusual + pub(topic, b"a") + LAST)
    assert [answer[-2:] for answer in replies(raw)] == [b"OK"] * 4


@pytest.mark.parametrize(
    ("query", "status"),
    [("topic=" + "t" * 65, 400), ("topic=a/b", 400), ("topic=", 400), ("", 400), ("tpoic=a", 400)],
)
def test_what_cannot_be_published_is_told_as_ever(
    nsqd: Nsqd, topic: str, query: str, status: int
) -> None:
    wrong = pub(topic, b"a").replace(f"topic={topic}".encode(), query.encode())
    raw = send_raw(nsqd, pub(topic, b"a") + wrong + LAST)
    first, refused, _ = replies(raw)
    assert b" 200 OK" in first
    assert b" %d " % status in refused


def nsqd_socket(nsqd: Nsqd) -> socket.socket:
    return send_raw(nsqd, b"")


def mpub(topic: str, messages: list[bytes], token: str = "") -> bytes:
    body = mpub_body(messages)
    target = f"/mpub?topic={topic}&binary=true" + (f"&token={token}" if token else "")
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_large_mpubs_in_a_row_are_published_in_order(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    sent = [b"%08d" % number * 100 for number in range(2000)]
    requests = [mpub(topic, sent[at : at + 500], f"t{at}") for at in range(0, 2000, 500)]
    raw = send_raw(nsqd, b"".join(requests) + LAST)
    assert [answer[-2:] for answer in replies(raw)] == [b"OK"] * 5
    assert published(connect, topic, 2000) == sent


@pytest.mark.deviation
def test_a_large_mpub_that_comes_again_is_published_once(nsqd: Nsqd, topic: str) -> None:
    messages = [b"x" * MSG_MAX] * 1000
    requests = [mpub(topic, messages, token) for token in ("a", "b", "b", "a", "c")]
    raw = send_raw(nsqd, b"".join(requests) + LAST)
    assert [answer[-2:] for answer in replies(raw)] == [b"OK"] * 6
    assert topic_stats(nsqd, topic)["message_count"] == 3000


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ([b"x" * MSG_MAX] * 999 + [b"x" * (MSG_MAX + 1)], b"BAD_MESSAGE"),
        ([b"x" * MSG_MAX] * 999 + [b""], b"BAD_MESSAGE"),
        ([b"x" * MSG_MAX] * 10_000, b"BODY_TOO_BIG"),
    ],
)
def test_a_large_mpub_that_is_wrong_is_told_as_ever_and_forgotten(
    nsqd: Nsqd, topic: str, wrong: list[bytes], code: bytes
) -> None:
    good = mpub(topic, [b"x" * MSG_MAX] * 1000)
    with nsqd_socket(nsqd) as raw:
        raw.sendall(good)
        assert raw.recv(1000).endswith(b"OK")
        with suppress(ConnectionError):  # it may hang up before it has all
            raw.sendall(mpub(topic, wrong, "t"))
        answer = raw.recv(1000)
    assert b" 413 " in answer and code in answer
    assert replies(send_raw(nsqd, mpub(topic, [b"x"], "t") + LAST))[0].endswith(b"OK")
    assert topic_stats(nsqd, topic)["message_count"] == 1001


@pytest.mark.deviation
def test_a_large_mpub_to_a_topic_deleted_meanwhile_makes_it_again(nsqd: Nsqd, topic: str) -> None:
    request = mpub(topic, [b"x" * MSG_MAX] * 1000)
    with nsqd_socket(nsqd) as raw:
        raw.sendall(request[:500_000])
        await_topic(nsqd, topic, message_count=0)
        act(nsqd, "/topic/delete", topic=topic)
        raw.sendall(request[500_000:] + LAST)
        assert len(replies(raw)) == 2
    assert topic_stats(nsqd, topic)["message_count"] == 1000


def test_a_publisher_goes_on_after_its_topic_was_deleted(nsqd: Nsqd) -> None:
    with closing(open_connection(nsqd)) as kept:
        assert ask_on(kept, "POST", "/pub?topic=remade", b"first").status == 200
        assert ask(nsqd, "POST", "/topic/delete?topic=remade").status == 200
        assert ask_on(kept, "POST", "/pub?topic=remade", b"second").status == 200
        assert ask_on(kept, "POST", "/pub?topic=remade", b"third").status == 200
    assert topic_stats(nsqd, "remade")["message_count"] == 2


def test_connections_with_the_same_head_publish_to_the_topic_there_is(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    with nsqd_socket(nsqd) as first, nsqd_socket(nsqd) as second:
        first.sendall(pub(topic, b"old"))
        assert first.recv(4096).startswith(b"HTTP/1.1 200")
        act(nsqd, "/topic/delete", topic=topic)
        second.sendall(pub(topic, b"new"))
        assert second.recv(4096).startswith(b"HTTP/1.1 200")
        first.sendall(pub(topic, b"too"))
        assert first.recv(4096).startswith(b"HTTP/1.1 200")
    assert published(connect, topic, 2) == [b"new", b"too"]


def test_thousands_of_heads_in_turn_are_each_taken_for_what_they_are(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    names = [f"{topic}_{number % 3}" for number in range(3000)]
    with nsqd_socket(nsqd) as raw:
        for number, name in enumerate(names):
            raw.sendall(pub(name, b"%d" % number, f"X-Number: {number % 1500}"))
            if number % 100 == 99:
                received = b""
                while received.count(b"HTTP/1.1 200") < 100:
                    received += raw.recv(1 << 16)
    for each in range(3):
        sent = [b"%d" % number for number in range(3000) if number % 3 == each]
        assert published(connect, f"{topic}_{each}", len(sent)) == sent
