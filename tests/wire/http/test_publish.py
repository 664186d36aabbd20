"""Publishing over HTTP: /pub and /mpub, their limits, and errors that queue nothing."""

import json
import re
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act, await_topic, topic_stats
from tests.kit.wire.commands import mpub_body, u32
from tests.kit.wire.session import Connect, bodies
from tests.kit.wire.web import NSQ_HEADER, TEXT_TYPE, ask, read_to_end, send_raw

MSG_MAX, BODY_MAX = 1000, 5000
NSQD_FLAGS = (f"--max-msg-size={MSG_MAX}", f"--max-body-size={BODY_MAX}", "--max-req-timeout=10s")


def published(connect: Connect, topic: str, count: int) -> list[bytes]:
    """What a consumer gets of the topic, which has so many messages."""
    session = connect()
    session.subscribe(topic, "ch", ready=count)
    return bodies(session.messages(count))


def in_chunks(*chunks: bytes) -> Iterator[bytes]:
    """A body whose length is not told beforehand."""
    yield from chunks


@pytest.mark.parametrize("body", [b"x", b"two\nlines\r\n", bytes(range(256)), b"y" * MSG_MAX])
def test_pub(nsqd: Nsqd, connect: Connect, topic: str, body: bytes) -> None:
    answer = ask(nsqd, "POST", f"/pub?topic={topic}", body)
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["Content-Type"] == TEXT_TYPE
    assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"
    await_topic(nsqd, topic, message_count=1, message_bytes=len(body))
    assert published(connect, topic, 1) == [body]


def test_pub_in_chunks(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    assert ask(nsqd, "POST", f"/pub?topic={topic}", in_chunks(b"a", b"bc", b"d")).status == 200
    assert published(connect, topic, 1) == [b"abcd"]


def test_a_body_is_not_decompressed(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    headers = {"Content-Encoding": "gzip"}
    assert ask(nsqd, "POST", f"/pub?topic={topic}", b"no gzip", headers=headers).status == 200
    assert published(connect, topic, 1) == [b"no gzip"]


def test_a_client_that_waits_to_be_told_is_told(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    head = (
        f"POST /pub?topic={topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    raw = send_raw(nsqd, head.encode())
    assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.sendall(b"body")
    assert b" 200 OK\r\n" in read_to_end(raw)
    assert published(connect, topic, 1) == [b"body"]


def test_a_client_that_waits_is_told_at_once_if_it_is_too_much(nsqd: Nsqd, topic: str) -> None:
    head = (
        f"POST /pub?topic={topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {MSG_MAX + 1}\r\nExpect: 100-continue\r\n\r\n"
    )
    raw = send_raw(nsqd, head.encode())
    assert raw.recv(1000).startswith(b"HTTP/1.1 413 ")
    raw.close()


@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [
        ("topic={}", b"", (400, "MSG_EMPTY")),
        ("topic={}", b"x" * (MSG_MAX + 1), (413, "MSG_TOO_BIG")),
        ("", b"x", (400, "MISSING_ARG_TOPIC")),
        ("channel={}", b"x", (400, "MISSING_ARG_TOPIC")),
        ("topic=", b"x", (400, "INVALID_TOPIC")),
        ("topic={}%20x", b"x", (400, "INVALID_TOPIC")),
        ("topic=" + "x" * 65, b"x", (400, "INVALID_TOPIC")),
        # The body is looked at before the parameters.
        ("topic=", b"", (400, "MSG_EMPTY")),
        ("topic=%zz", b"x" * (MSG_MAX + 1), (413, "MSG_TOO_BIG")),
    ],
)
def test_pub_errors(
    nsqd: Nsqd, topic: str, query: str, body: bytes, expected: tuple[int, str]
) -> None:
    answer = ask(nsqd, "POST", "/pub?" + query.format(topic), body)
    assert (answer.status, answer.code) == expected
    assert not topic_stats(nsqd, topic)


@pytest.mark.parametrize(
    ("path", "most", "code"),
    [
        ("/pub", MSG_MAX, "MSG_TOO_BIG"),
        ("/mpub", BODY_MAX, "BODY_TOO_BIG"),
    ],
)
def test_a_body_in_chunks_is_bounded_too(
    nsqd: Nsqd, topic: str, path: str, most: int, code: str
) -> None:
    chunks = in_chunks(*[b"x" * 99 + b"\n"] * (most // 100), b"x")
    answer = ask(nsqd, "POST", f"{path}?topic={topic}", chunks)
    assert (answer.status, answer.code) == (413, code)
    assert topic_stats(nsqd, topic).get("message_count", 0) == 0


@pytest.mark.deviation  # the original reads on
def test_a_binary_body_in_chunks_is_bounded_too(nsqd: Nsqd, topic: str) -> None:
    body = mpub_body([b"x" * 996] * 6)
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}&binary=1", in_chunks(body))
    assert (answer.status, answer.code) == (413, "BODY_TOO_BIG")


@pytest.mark.parametrize("value", ["", "x", "1.5", "-1", "10001", "%201", "1e3", "1_0", "9" * 30])
def test_bad_delays_are_refused_but_the_topic_is_there(nsqd: Nsqd, topic: str, value: str) -> None:
    answer = ask(nsqd, "POST", f"/pub?topic={topic}&defer={value}", b"x")
    assert (answer.status, answer.code) == (400, "INVALID_DEFER")
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.parametrize("value", ["0", "00", "%2B0"])
def test_no_delay_is_a_delay_too(nsqd: Nsqd, connect: Connect, topic: str, value: str) -> None:
    assert ask(nsqd, "POST", f"/pub?topic={topic}&defer={value}", b"x").status == 200
    assert published(connect, topic, 1) == [b"x"]


def test_a_delayed_message_comes_after_those_that_are_not(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=3)
    assert ask(nsqd, "POST", f"/pub?topic={topic}&defer=10000", b"much later").status == 200
    assert ask(nsqd, "POST", f"/pub?topic={topic}&defer=300", b"later").status == 200
    assert ask(nsqd, "POST", f"/pub?topic={topic}", b"now").status == 200
    assert bodies(session.messages(2)) == [b"now", b"later"]


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b"one\ntwo\nthree", [b"one", b"two", b"three"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"\n\none\n\n\ntwo\n\n", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one\r", b"two\r"]),
        (b"\x00\xff\n \n", [b"\x00\xff", b" "]),
        (b"x" * MSG_MAX + b"\ny", [b"x" * MSG_MAX, b"y"]),
        (b"x\n" * (BODY_MAX // 2), [b"x"] * (BODY_MAX // 2)),
    ],
)
@pytest.mark.parametrize("binary", ["", "&binary=false", "&binary=0"])
def test_mpub_of_lines(
    nsqd: Nsqd, connect: Connect, topic: str, body: bytes, messages: list[bytes], binary: str
) -> None:
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}{binary}", body)
    assert (answer.status, answer.body) == (200, b"OK")
    size = sum(map(len, messages))
    await_topic(nsqd, topic, message_count=len(messages), message_bytes=size)
    assert published(connect, topic, len(messages)) == messages


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_mpub_of_no_lines(nsqd: Nsqd, topic: str, body: bytes) -> None:
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}", body)
    assert (answer.status, answer.body) == (200, b"OK")
    assert topic_stats(nsqd, topic)["message_count"] == 0


def test_a_large_mpub_of_lines(tmp_path: Path) -> None:
    lines = [b"%020d" % n for n in range(20_000)]
    with Nsqd(tmp_path / "data") as daemon:
        assert ask(daemon, "POST", "/mpub?topic=t", b"\n".join(lines)).status == 200
        with daemon.connect() as client:
            client.sub("t", "ch")
            client.rdy(2500)
            seen = []
            for _ in lines:
                message = client.read_message()
                client.fin(message.id)
                seen.append(message.body)
    assert sorted(seen, key=int) == lines


@pytest.mark.parametrize("value", ["=true", "=1", "", "=", "=TRUE", "=yes", "=no"])
def test_mpub_binary(nsqd: Nsqd, connect: Connect, topic: str, value: str) -> None:
    messages = [b"one\n", b"\x00" * MSG_MAX, b"\n"]
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}&binary{value}", mpub_body(messages))
    assert (answer.status, answer.body) == (200, b"OK")
    assert published(connect, topic, 3) == messages


def test_what_follows_the_messages_of_a_binary_body_is_ignored(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    body = mpub_body([b"a", b"b"]) + b"and more"
    assert ask(nsqd, "POST", f"/mpub?topic={topic}&binary=1", body).status == 200
    assert published(connect, topic, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\x00\x00\x00", "BAD_BODY"),
        (u32(0), "BAD_BODY"),
        (u32(-1), "BAD_BODY"),
        (u32((BODY_MAX - 4) // 5 + 1), "BAD_BODY"),
        (u32(1), "BAD_MESSAGE"),
        (u32(1) + u32(0), "BAD_MESSAGE"),
        (u32(1) + u32(-1), "BAD_MESSAGE"),
        (u32(1) + u32(MSG_MAX + 1) + b"x" * (MSG_MAX + 1), "BAD_MESSAGE"),
        (u32(1) + u32(3) + b"xx", "BAD_MESSAGE"),
        (u32(3) + mpub_body([b"a", b"b"])[4:], "BAD_MESSAGE"),
        (mpub_body([b"a", b"b", b""]), "BAD_MESSAGE"),
    ],
)
def test_bad_binary_bodies_queue_nothing(nsqd: Nsqd, topic: str, body: bytes, code: str) -> None:
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}&binary=true", body)
    assert (answer.status, answer.code) == (413, code)
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [
        ("topic={}", b"x\n" * (BODY_MAX // 2) + b"x", (413, "BODY_TOO_BIG")),
        ("topic={}&binary=1", b"x" * (BODY_MAX + 1), (413, "BODY_TOO_BIG")),
        ("", b"x", (400, "MISSING_ARG_TOPIC")),
        ("topic={}%20x", b"x", (400, "INVALID_TOPIC")),
    ],
)
def test_mpub_errors(
    nsqd: Nsqd, topic: str, query: str, body: bytes, expected: tuple[int, str]
) -> None:
    answer = ask(nsqd, "POST", "/mpub?" + query.format(topic), body)
    assert (answer.status, answer.code) == expected
    assert not topic_stats(nsqd, topic)


def test_one_line_too_long_and_nothing_is_queued(nsqd: Nsqd, topic: str) -> None:
    body = b"fine\n" + b"x" * (MSG_MAX + 1) + b"\nfine\n"
    answer = ask(nsqd, "POST", f"/mpub?topic={topic}", body)
    assert (answer.status, answer.code) == (413, "MSG_TOO_BIG")
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
def test_a_body_that_breaks_off_queues_nothing(nsqd: Nsqd, topic: str, path: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    head = f"POST {path}?topic={topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    raw = send_raw(nsqd, head.encode() + b"half of it\n")
    raw.close()
    assert ask(nsqd, "POST", f"/pub?topic={topic}", b"next").status == 200
    await_topic(nsqd, topic, message_count=1)


def limit_file_size(nsqd: Nsqd, size_bytes: int) -> None:
    resource.prlimit(nsqd.process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


@pytest.mark.deviation  # the original keeps what fits in memory, and dies of the signal
@pytest.mark.parametrize(
    "requests",
    [[("/pub?topic=t", b"x" * 20_000)], [("/mpub?topic=t", b"x" * 20_000 + b"\ny")]],
    ids=["pub", "mpub"],
)
@pytest.mark.deviation
def test_a_failed_write_is_told_and_recovered_from(
    own_nsqd: Nsqd, requests: Sequence[tuple[str, bytes]]
) -> None:
    own_nsqd.start()
    assert ask(own_nsqd, "POST", "/pub?topic=t", b"x" * 100_000).status == 200
    limit_file_size(own_nsqd, 100_000)
    for target, body in requests:
        answer = ask(own_nsqd, "POST", target, body)
        assert answer.status == 503
        assert json.loads(answer.body) == {"message": "WRITE_FAILED", "detail": "file too large"}
    ping = ask(own_nsqd, "GET", "/ping")
    assert ping.status == 500
    assert re.fullmatch(rb"NOK - failed to write .*file too large", ping.body)
    assert own_nsqd.stats()["health"] == ping.body.decode()
    assert "TOPIC(t): HTTP publish failed - file too large" in own_nsqd.log_text()
    assert topic_stats(own_nsqd, "t")["message_count"] == 1
    limit_file_size(own_nsqd, resource.RLIM_INFINITY)
    assert ask(own_nsqd, "POST", "/pub?topic=t", b"x").status == 200
    wait_until(lambda: ask(own_nsqd, "GET", "/ping").body == b"OK")
