"""Looking into a log over HTTP: pages of messages, oldest or newest first, and what is to come."""

import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.kit.daemons import IO_TIMEOUT_S, Nsqd, wait_until
from tests.kit.wire.admin import act
from tests.kit.wire.commands import dpub, fin, req
from tests.kit.wire.session import Connect
from tests.kit.wire.web import ask

pytestmark = pytest.mark.deviation  # NSQ has no such thing

NSQD_FLAGS = ["--max-bytes-per-file=3000"]
SENT = [b"message %d" % number for number in range(100)]

Event = dict[str, str]


def peek(nsqd: Nsqd, topic: str, **params: object) -> dict[str, Any]:
    query = urlencode({"topic": topic, **params})
    return dict(ask(nsqd, "GET", f"/log/peek?{query}").json())


def offsets(page: dict[str, Any]) -> list[int]:
    return [message["offset"] for message in page["messages"]]


@pytest.fixture
def filled(nsqd: Nsqd, connect: Connect, topic: str) -> str:
    """A topic with 100 messages in batches of ten."""
    client = connect().raw
    for at in range(0, 100, 10):
        client.mpub(topic, SENT[at : at + 10])
    return topic


# -- peek -----------------------------------------------------------------------------------------


def test_a_page_begins_at_the_oldest_message(nsqd: Nsqd, filled: str) -> None:
    before_ns = time.time_ns()
    page = peek(nsqd, filled)
    assert list(page) == ["topic", "log", "first", "end", "messages", "next"]
    assert (page["topic"], page["first"], page["end"], page["next"]) == (filled, 0, 100, 20)
    assert offsets(page) == list(range(20))
    message = page["messages"][3]
    assert message["body"] == "message 3"
    assert (message["bytes"], message["attempts"]) == (9, 1)
    assert message["id"] == f"{int(page['log'], 16) + 3:016x}"
    assert 0 < message["timestamp"] < before_ns
    assert {"state", "deferred_until", "truncated", "body_base64"}.isdisjoint(message)


def test_pages_follow_on_each_other(nsqd: Nsqd, filled: str) -> None:
    seen: list[int] = []
    at = 0
    while at < 100:
        page = peek(nsqd, filled, **{"from": at, "limit": 7})
        seen += offsets(page)
        at = page["next"]
    assert seen == list(range(100))


def test_pages_newest_first_follow_on_each_other(nsqd: Nsqd, filled: str) -> None:
    seen: list[int] = []
    at = 100
    while at > 0:
        page = peek(nsqd, filled, **{"newest": "true", "from": at, "limit": 7})
        seen += offsets(page)
        at = page["next"]
    assert seen == list(range(99, -1, -1))
    assert offsets(peek(nsqd, filled, newest="true", limit=2)) == [99, 98]


def test_a_filter_finds_what_contains_a_text(nsqd: Nsqd, filled: str) -> None:
    page = peek(nsqd, filled, contains="ge 7")
    assert (offsets(page), page["next"]) == ([7, *range(70, 80)], 100)
    page = peek(nsqd, filled, contains="ge 7", newest="true", limit=3)
    assert (offsets(page), page["next"]) == ([79, 78, 77], 77)
    assert offsets(peek(nsqd, filled, contains="nothing like that")) == []


def test_a_message_is_found_by_its_id(nsqd: Nsqd, filled: str) -> None:
    found = peek(nsqd, filled)["messages"][15]
    assert peek(nsqd, filled, id=found["id"])["messages"] == [found]
    assert peek(nsqd, filled, id="f" * 16)["messages"] == []


def test_a_page_begins_at_a_time(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    now_ns = time.time_ns()
    connect().raw.mpub(filled, [b"later"])
    assert offsets(peek(nsqd, filled, time=now_ns)) == [100]
    assert offsets(peek(nsqd, filled, time=now_ns, newest="1", limit=1)) == [99]


def test_bodies_that_are_no_text_come_in_base64(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = [b"\xff\xfe", "žluť".encode(), b"{}\n\0", b"x" * 300, b"\xff" * 300]
    connect().raw.mpub(topic, bodies)
    shown = peek(nsqd, topic, body_max=5)["messages"]
    assert base64.b64decode(shown[0]["body_base64"]) == bodies[0]
    assert "body" not in shown[0]
    assert shown[1]["body"] == "žlu"  # 5 of 6 bytes, and no part of a character
    assert (shown[2]["body"], shown[2]["bytes"]) == ("{}\n\0", 4)
    assert (shown[3]["body"], shown[3]["truncated"], shown[3]["bytes"]) == ("xxxxx", True, 300)
    assert base64.b64decode(shown[4]["body_base64"]) == b"\xff" * 5


def test_a_page_has_so_many_bytes_and_no_more(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    client = connect().raw
    for _ in range(10):
        client.publish(topic, b"x" * 1_000_000)
    page = peek(nsqd, topic, limit=1000)
    assert (offsets(page), page["next"]) == (list(range(8)), 8)
    page = peek(nsqd, topic, limit=1000, newest="true")
    assert (offsets(page), page["next"]) == (list(range(9, 1, -1)), 2)


def test_a_channel_shows_what_it_has_not_finished(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=4)
    producer.publish(topic, *SENT[:6])
    first, second, third, _ = consumer.messages(4)
    consumer.send(fin(first.id), fin(third.id), req(second.id, 60_000))
    assert consumer.messages(2)[-1].body == b"message 5"
    producer.send(dpub(topic, 50_000, b"late"))
    producer.frame()
    page = peek(nsqd, topic, channel="ch")
    shown = [(each["offset"], each["state"], each["attempts"]) for each in page["messages"]]
    assert shown == [
        (1, "deferred", 1),
        (3, "in_flight", 1),
        (4, "in_flight", 1),
        (5, "in_flight", 1),
        (6, "deferred", 0),
    ]
    for index, seconds in ((0, 60), (4, 50)):
        left_s = page["messages"][index]["deferred_until"] / 1e9 - time.time()
        assert seconds - 30 < left_s <= seconds
    consumer.close()
    wait_until(lambda: peek(nsqd, topic, channel="ch")["messages"][1]["state"] == "requeued")


BAD_PLACES: list[tuple[str, int, dict[str, object]]] = [
    ("", 400, {"message": "MISSING_ARG_TOPIC"}),
    ("topic=nobody", 404, {"message": "TOPIC_NOT_FOUND"}),
    ("topic=e%23ephemeral", 400, {"message": "EPHEMERAL_TOPIC"}),
    ("topic=seen&from=x", 400, {"message": "INVALID_OFFSET"}),
    ("topic=seen&from=1", 416, {"message": "OFFSET_BEYOND_END", "end": 0}),
]


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        *BAD_PLACES,
        ("topic=seen&channel=nobody", 404, {"message": "CHANNEL_NOT_FOUND"}),
        ("topic=seen&time=x", 400, {"message": "INVALID_TIME"}),
        ("topic=seen&limit=x", 400, {"message": "INVALID_LIMIT"}),
        ("topic=seen&newest=perhaps", 400, {"message": "INVALID_NEWEST"}),
        ("topic=seen&id=12", 400, {"message": "INVALID_ID"}),
        ("topic=seen&id=................", 400, {"message": "INVALID_ID"}),
    ],
)
def test_bad_pages_are_refused(
    nsqd: Nsqd, query: str, status: int, body: dict[str, object]
) -> None:
    check_refused(nsqd, f"/log/peek?{query}", status, body)


@pytest.mark.parametrize(("query", "status", "body"), BAD_PLACES)
def test_bad_tails_are_refused(
    nsqd: Nsqd, query: str, status: int, body: dict[str, object]
) -> None:
    check_refused(nsqd, f"/log/tail?{query}", status, body)


def check_refused(nsqd: Nsqd, target: str, status: int, body: dict[str, object]) -> None:
    for name in ("seen", "e#ephemeral"):
        act(nsqd, "/topic/create", topic=name)
    answer = ask(nsqd, "GET", target)
    assert (answer.status, json.loads(answer.body)) == (status, body)


def test_an_empty_topic_has_an_empty_page(nsqd: Nsqd, topic: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    for newest in ("true", "false"):
        page = peek(nsqd, topic, newest=newest)
        assert (page["messages"], page["next"]) == ([], 0)


# -- tail -----------------------------------------------------------------------------------------


class Tail:
    """A reader of server-sent events, as a browser is one."""

    def __init__(self, nsqd: Nsqd, query: str, headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", nsqd.http_port), IO_TIMEOUT_S)
        # HTTP/1.0: the body comes as it is, and ends with the connection.
        request = f"GET /log/tail?{query} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n"
        self.socket.sendall(request.encode())
        self.file = self.socket.makefile("rb")
        self.head = list(iter(self.file.readline, b"\r\n"))
        assert self.head[0].endswith(b" 200 OK\r\n"), self.head
        assert b"Content-Type: text/event-stream; charset=utf-8\r\n" in self.head
        assert self.event() == {"retry": "1000"}

    def event(self) -> Event:
        lines = [line.decode().rstrip("\n") for line in iter(self.file.readline, b"\n")]
        return dict(line.split(": ", 1) for line in lines)

    def bodies(self, count: int) -> list[bytes]:
        events = [self.event() for _ in range(count)]
        shown = [json.loads(each["data"]) for each in events]
        assert [int(each["id"]) for each in events] == [each["offset"] for each in shown]
        return [each["body"].encode() for each in shown]


@contextmanager
def tailing(nsqd: Nsqd, query: str, headers: str = "") -> Iterator[Tail]:
    tail = Tail(nsqd, query, headers)
    try:
        yield tail
    finally:
        tail.file.close()
        tail.socket.close()


def test_a_tail_gives_what_comes(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    with tailing(nsqd, f"topic={filled}") as tail:
        connect().raw.mpub(filled, [b"a", b"b"])
        assert tail.bodies(2) == [b"a", b"b"]
        connect().raw.mpub(filled, [b"c"])
        assert tail.bodies(1) == [b"c"]


def test_a_tail_may_begin_earlier(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    with tailing(nsqd, f"topic={filled}&from=90") as tail:
        connect().raw.mpub(filled, [b"new"])
        assert tail.bodies(11) == [*SENT[90:], b"new"]


def test_a_tail_that_comes_back_goes_on_after_its_last_event(nsqd: Nsqd, filled: str) -> None:
    with tailing(nsqd, f"topic={filled}&from=3", "Last-Event-ID: 96\r\n") as tail:
        assert tail.bodies(3) == SENT[97:]


def test_a_tail_can_be_filtered(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    with tailing(nsqd, f"topic={filled}&from=0&contains=ge+9") as tail:
        connect().raw.mpub(filled, [b"another", b"message 9 again"])
        assert tail.bodies(12) == [b"message 9", *SENT[90:], b"message 9 again"]


def test_a_tail_ends_with_its_topic(nsqd: Nsqd, filled: str) -> None:
    with tailing(nsqd, f"topic={filled}") as tail:
        act(nsqd, "/topic/delete", topic=filled)
        assert tail.event() == {"event": "end", "data": "{}"}
        assert tail.file.read() == b""


def test_a_tail_over_http_1_1_comes_in_chunks(nsqd: Nsqd, filled: str) -> None:
    raw = socket.create_connection(("127.0.0.1", nsqd.http_port), IO_TIMEOUT_S)
    target = f"/log/tail?topic={filled}&from=99"
    raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with raw, raw.makefile("rb") as stream:
        head = list(iter(stream.readline, b"\r\n"))
        assert b"Transfer-Encoding: chunked\r\n" in head
        data = b""
        while b"message 99" not in data:
            size = int(stream.readline(), 16)
            data += stream.read(size)
            stream.readline()
    assert data.startswith(b"retry: 1000\n\nid: 99\ndata: {")


def test_a_daemon_stops_with_tails_connected(own_nsqd: Nsqd) -> None:
    own_nsqd.start()
    act(own_nsqd, "/topic/create", topic="t")
    with tailing(own_nsqd, "topic=t"):
        assert own_nsqd.stop() == 0


def test_so_many_tails_and_no_more(own_nsqd: Nsqd) -> None:
    own_nsqd.start()
    act(own_nsqd, "/topic/create", topic="t")
    tails = [Tail(own_nsqd, "topic=t", "") for _ in range(100)]
    answer = ask(own_nsqd, "GET", "/log/tail?topic=t")
    assert (answer.status, answer.code) == (503, "TOO_MANY_TAILS")
    for tail in tails:
        tail.file.close()
        tail.socket.close()

    def admitted() -> bool:
        try:
            with tailing(own_nsqd, "topic=t"):
                return True
        except AssertionError:
            return False

    wait_until(admitted)
