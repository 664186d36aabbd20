"""Publishing with a token: once, however often it is said, to /pub and /mpub, over restarts."""

import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from pumpline.core.messages.publish_tokens import digest_of, split_tokens
from tests.kit.daemons import Nsqd
from tests.kit.logs import batches_in
from tests.kit.wire.admin import act, topic_stats
from tests.kit.wire.commands import mpub_body
from tests.kit.wire.session import Connect, bodies
from tests.kit.wire.web import Answer, ask, ask_on, open_connection, send_raw
from tests.wire.stats.test_prometheus import figures, scrape

pytestmark = pytest.mark.deviation

NSQD_FLAGS = ("--max-bytes-per-file=2000", "--max-msg-size=1000", "--max-body-size=5000")
COPIES = 20


def mpub(nsqd: Nsqd, topic: str, messages: list[bytes], token: str) -> Answer:
    return ask(nsqd, "POST", f"/mpub?topic={topic}&binary=true&token={token}", mpub_body(messages))


def pub(nsqd: Nsqd, topic: str, body: bytes, query: str) -> Answer:
    return ask(nsqd, "POST", f"/pub?topic={topic}&{query}", body)


def published(connect: Connect, nsqd: Nsqd, topic: str) -> list[bytes]:
    """What a consumer gets of the topic, which must be all it has ever had."""
    count = int(topic_stats(nsqd, topic)["message_count"])
    session = connect(nsqd)
    session.subscribe(topic, "ch", ready=count)
    return bodies(session.messages(count))


def test_mpub_is_published_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    for token in ("t-1", "t-2", "t-1", "t-1", "t-2"):
        answer = mpub(nsqd, topic, [token.encode(), b"x"], token)
        assert (answer.status, answer.body) == (200, b"OK")
    assert published(connect, nsqd, topic) == [b"t-1", b"x", b"t-2", b"x"]


def test_a_text_mpub_is_published_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    for _ in range(2):
        assert ask(nsqd, "POST", f"/mpub?topic={topic}&token=a", b"1\n\n2\n").status == 200
    assert published(connect, nsqd, topic) == [b"1", b"2"]


def test_pub_is_published_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    for token in ("a", "b", "a"):
        assert pub(nsqd, topic, b"x" + token.encode(), f"token={token}").body == b"OK"
    assert published(connect, nsqd, topic) == [b"xa", b"xb"]


def test_pub_with_a_delay_is_published_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    for _ in range(3):
        assert pub(nsqd, topic, b"later", "defer=100&token=a").status == 200
    assert published(connect, nsqd, topic) == [b"later"]


def test_pub_and_mpub_share_tokens_and_topics_do_not(nsqd: Nsqd, topic: str) -> None:
    assert pub(nsqd, topic, b"1", "token=a").status == 200
    assert mpub(nsqd, topic, [b"2", b"3"], "a").status == 200
    assert pub(nsqd, topic + "-other", b"4", "token=a").status == 200
    assert topic_stats(nsqd, topic)["message_count"] == 1
    assert topic_stats(nsqd, topic + "-other")["message_count"] == 1


def test_publishes_without_a_token_are_all_published(nsqd: Nsqd, topic: str) -> None:
    for query in ("token=a", "defer=0", "token=b", "defer=0"):
        assert pub(nsqd, topic, b"x", query).status == 200
    assert topic_stats(nsqd, topic)["message_count"] == 4


@pytest.mark.parametrize("token", ["a", "Z", "0", "._:-", "0123abcDEF:" * 5, "x" * 64])
def test_tokens_that_are_taken(nsqd: Nsqd, topic: str, token: str) -> None:
    for _ in range(2):
        assert pub(nsqd, topic, b"x", f"token={token}").status == 200
    assert topic_stats(nsqd, topic)["message_count"] == 1


@pytest.mark.parametrize("token", ["", "x" * 65, "%20", "a%20", "%C3%A4", "a/b", "a%0A", "%00"])
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
def test_tokens_that_are_not(nsqd: Nsqd, topic: str, token: str, path: str) -> None:
    answer = ask(nsqd, "POST", f"{path}?topic={topic}&token={token}", b"x")
    assert (answer.status, answer.code) == (400, "INVALID_TOKEN")
    assert not topic_stats(nsqd, topic)


def test_a_publish_that_was_refused_can_be_put_right(nsqd: Nsqd, topic: str) -> None:
    too_big = mpub_body([b"x" * 1001])
    path = f"/mpub?topic={topic}&binary=true&token=a"
    assert ask(nsqd, "POST", path, too_big).status == 413
    assert ask(nsqd, "POST", path, mpub_body([b"x"])[:-1]).status == 413
    assert topic_stats(nsqd, topic)["message_count"] == 0
    assert mpub(nsqd, topic, [b"x"], "a").status == 200
    assert topic_stats(nsqd, topic)["message_count"] == 1


@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["", "group-commit"])
def test_many_at_once_with_one_token_are_one(own_nsqd: Nsqd, flags: tuple[str, ...]) -> None:
    own_nsqd.flags = [*flags]
    own_nsqd.start()
    connections = [open_connection(own_nsqd) for _ in range(COPIES)]
    together = threading.Barrier(COPIES)
    statuses: list[int] = []

    def repeat(connection: HTTPConnection) -> None:
        connection.connect()
        for number in range(10):
            together.wait(30)
            path = f"/mpub?topic=t&binary=true&token=t-{number}"
            answer = ask_on(connection, "POST", path, mpub_body([b"%d" % number] * 3))
            statuses.append(answer.status)

    threads = [threading.Thread(target=repeat, args=(each,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    assert statuses == [200] * 10 * COPIES
    assert topic_stats(own_nsqd, "t")["message_count"] == 30
    counted = figures(scrape(own_nsqd), topic="t")
    assert counted["nsqd_topic_publish_repeats_total"] == 10 * (COPIES - 1)


def test_a_token_on_a_connection_that_publishes_plainly_is_heeded(nsqd: Nsqd, topic: str) -> None:
    """A head that comes again, with its publish token, publishes nothing again."""
    head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n"
    plain = f"{head}x".encode()
    marked = plain.replace(b" HTTP", b"&token=a HTTP")
    last = marked.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
    raw = send_raw(nsqd, plain + plain + marked + marked + last)
    answers = b""
    while piece := raw.recv(65536):
        answers += piece
    assert answers.count(b"HTTP/1.1 200 OK") == 5
    assert topic_stats(nsqd, topic)["message_count"] == 3


def test_emptying_a_topic_keeps_tokens_and_deleting_it_does_not(nsqd: Nsqd, topic: str) -> None:
    pub(nsqd, topic, b"x", "token=a")
    act(nsqd, "/topic/empty", topic=topic)
    pub(nsqd, topic, b"x", "token=a")
    assert topic_stats(nsqd, topic)["message_count"] == 1
    act(nsqd, "/topic/delete", topic=topic)
    pub(nsqd, topic, b"x", "token=a")
    assert topic_stats(nsqd, topic)["message_count"] == 1


def test_an_ephemeral_topic_has_tokens(nsqd: Nsqd, topic: str) -> None:
    for token in "abba":
        assert pub(nsqd, topic + "%23ephemeral", b"x", f"token={token}").status == 200
    assert topic_stats(nsqd, topic + "#ephemeral")["message_count"] == 2


def test_the_bound_and_its_counters(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--max-publish-tokens=3"]) as nsqd:
        for token in "abcdecdea":
            pub(nsqd, "t", b"x", f"token={token}")
        assert topic_stats(nsqd, "t")["message_count"] == 6  # a was forgotten, and came again
        counted = figures(scrape(nsqd), topic="t")
        assert counted["nsqd_topic_publish_tokens"] == 3
        assert counted["nsqd_topic_publish_repeats_total"] == 3
        assert counted["nsqd_topic_forgotten_publish_tokens_total"] == 3


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_tokens_are_known_after_a_restart(own_nsqd: Nsqd, connect: Connect, end: str) -> None:
    """Most of them in segments that the next start does not read."""
    own_nsqd.flags = [*NSQD_FLAGS]
    own_nsqd.start()
    tokens = [f"token-{number}" for number in range(40)]
    for token in tokens:
        assert mpub(own_nsqd, "t", [token.encode(), b"y" * 100], token).status == 200
    for _ in range(2):
        getattr(own_nsqd, end)()
        own_nsqd.start()
        for token in tokens:
            assert mpub(own_nsqd, "t", [token.encode(), b"y" * 100], token).body == b"OK"
        assert topic_stats(own_nsqd, "t")["message_count"] == 0
    session = connect(own_nsqd)
    session.subscribe("t", "ch", ready=80)
    assert bodies(session.messages(80))[::2] == [token.encode() for token in tokens]


def test_damaged_files_of_tokens_do_not_keep_nsqd_from_starting(own_nsqd: Nsqd) -> None:
    own_nsqd.start()
    pub(own_nsqd, "t", b"x", "token=a")
    own_nsqd.stop()
    (own_nsqd.data_path / "topics" / "t" / "tokens").write_bytes(b"\xff" * 1000)
    own_nsqd.start()
    assert "1000 bytes of its tokens' files make no sense" in own_nsqd.log_text()
    pub(own_nsqd, "t", b"x", "token=a")
    assert topic_stats(own_nsqd, "t")["message_count"] == 0


def test_readers_by_offset_see_the_messages(nsqd: Nsqd, topic: str) -> None:
    pub(nsqd, topic, b"plain", "defer=0")
    mpub(nsqd, topic, [b"one", b"two"], "a")
    pub(nsqd, topic, b"three", "token=b")
    peek = ask(nsqd, "GET", f"/log/peek?topic={topic}").json()
    assert [each["body"] for each in peek["messages"]] == ["plain", "one", "two", "three"]
    found = ask(nsqd, "GET", f"/log/peek?topic={topic}&contains=two").json()["messages"]
    assert [each["offset"] for each in found] == [2]
    raw = ask(nsqd, "GET", f"/log/raw?topic={topic}&from=1&to=4")
    batches = batches_in(raw.body)
    assert [(batch.first, batch.end) for batch in batches] == [(1, 3), (3, 4)]
    tokens = [token for batch in batches for token in split_tokens(batch.tokens)]
    assert tokens == [digest_of("a"), digest_of("b")]
