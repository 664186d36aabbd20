"""Publish tokens over TCP: a feature that a client asks for in IDENTIFY, and no other ever sees."""

import json
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import topic_stats
from tests.kit.wire.commands import identify, mpub_body, pub, sized, u32
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, Session, bodies
from tests.kit.wire.web import ask
from tests.wire.stats.test_prometheus import figures, scrape

pytestmark = pytest.mark.deviation

NSQD_FLAGS = ("--max-msg-size=100000", "--max-body-size=500000")
ASKS = {"feature_negotiation": True, "publish_tokens": True}
LARGE = b"x" * 80_000  # it is received in a buffer of its own
PAGE = b"y" * 30_000


def with_tokens(session: Session) -> Session:
    granted = json.loads(session.request(identify(ASKS)).data)
    assert granted["publish_tokens"] is True
    return session


def token_pub(topic: str, token: bytes, body: bytes) -> bytes:
    return b"PUB %b %b\n" % (topic.encode(), token) + sized(body)


def token_mpub(topic: str, token: bytes, messages: list[bytes]) -> bytes:
    return b"MPUB %b %b\n" % (topic.encode(), token) + sized(mpub_body(messages))


def token_dpub(topic: str, delay_ms: int, token: bytes, body: bytes) -> bytes:
    return b"DPUB %b %d %b\n" % (topic.encode(), delay_ms, token) + sized(body)


def stored(connect: Connect, nsqd: Nsqd, topic: str) -> list[bytes]:
    """All that the topic has ever had."""
    count = int(topic_stats(nsqd, topic)["message_count"])
    session = connect(nsqd)
    session.subscribe(topic, "ch", ready=count)
    return bodies(session.messages(count))


@pytest.mark.parametrize("body", [b"a", LARGE], ids=["small", "large"])
def test_a_repeated_pub_is_stored_once(
    nsqd: Nsqd, connect: Connect, topic: str, body: bytes
) -> None:
    session = with_tokens(connect(nsqd))
    for _ in range(3):
        assert session.request(token_pub(topic, b"t-1", body)) == OK
    assert stored(connect, nsqd, topic) == [body]


def test_repeats_in_one_packet_are_answered_in_order_and_stored_once(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = with_tokens(connect(nsqd))
    session.send(
        pub(topic, b"plain"),
        token_pub(topic, b"a", b"1"),
        token_pub(topic, b"a", b"1"),
        pub(topic, b"plain"),
        token_mpub(topic, b"b", [b"2", b"3"]),
        token_mpub(topic, b"b", [b"2", b"3"]),
        token_pub(topic, b"a", b"1"),
    )
    assert session.frames(7) == [OK] * 7
    assert stored(connect, nsqd, topic) == [b"plain", b"1", b"plain", b"2", b"3"]


def test_a_repeated_mpub_is_stored_once_however_it_arrives(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = with_tokens(connect(nsqd))
    command = token_mpub(topic, b"all", [b"1", b"2", b"3"])
    session.send_by_byte(command)
    assert session.frame() == OK
    assert session.request(command) == OK
    assert with_tokens(connect(nsqd)).request(command) == OK
    pages = token_mpub(topic, b"pages", [PAGE] * 5)
    assert session.request(pages) == OK
    assert session.request(pages) == OK
    assert stored(connect, nsqd, topic) == [b"1", b"2", b"3"] + [PAGE] * 5


def test_a_repeated_dpub_is_stored_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = with_tokens(connect(nsqd))
    for _ in range(3):
        assert session.request(token_dpub(topic, 20, b"later", b"x")) == OK
    assert stored(connect, nsqd, topic) == [b"x"]


def test_one_token_over_http_and_tcp_is_stored_once(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = with_tokens(connect(nsqd))
    path = f"/pub?topic={topic}&token="
    assert ask(nsqd, "POST", path + "first-http", b"h").status == 200
    assert session.request(token_pub(topic, b"first-http", b"h")) == OK
    assert session.request(token_pub(topic, b"first-tcp", b"t")) == OK
    assert ask(nsqd, "POST", path + "first-tcp", b"t").status == 200
    assert stored(connect, nsqd, topic) == [b"h", b"t"]
    assert figures(scrape(nsqd), topic=topic)["nsqd_topic_publish_repeats_total"] == 2


def test_a_repeat_is_not_counted_as_published_by_the_client(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = with_tokens(connect(nsqd))
    for _ in range(4):
        assert session.request(token_mpub(topic, b"a", [b"1", b"2"])) == OK
    stats = ask(nsqd, "GET", f"/stats?format=json&topic={topic}").json()
    counts = [each["pub_counts"] for each in stats["producers"] or []]
    assert [{"topic": topic, "count": 2}] in counts


def test_stock_clients_get_the_same_bytes_as_ever(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    """Neither the answer to IDENTIFY nor what further parameters mean has changed."""
    session = connect(nsqd)
    told = json.loads(session.request(identify({"feature_negotiation": True})).data)
    assert "publish_tokens" not in told
    for _ in range(2):
        assert session.request(token_pub(topic, b"ignored", b"1")) == OK
        assert session.request(token_mpub(topic, b"not/valid", [b"2"])) == OK
        assert session.request(token_dpub(topic, 0, b"ignored", b"3")) == OK
    assert sorted(stored(connect, nsqd, topic)) == [b"1", b"1", b"2", b"2", b"3", b"3"]


def test_without_negotiation_there_are_no_tokens(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect(nsqd)
    assert session.request(identify({"publish_tokens": True})) == OK
    for _ in range(2):
        assert session.request(token_pub(topic, b"a", b"1")) == OK
    assert stored(connect, nsqd, topic) == [b"1", b"1"]


def test_an_nsqd_that_remembers_none_grants_none(tmp_path: Path, connect: Connect) -> None:
    with Nsqd(tmp_path / "data", ["--max-publish-tokens=0"]) as none:
        granted = json.loads(connect(none).request(identify(ASKS)).data)
        assert "publish_tokens" not in granted


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"PUB {t} a/b", rb'E_INVALID PUB publish token "a/b" is not valid'),
        (b"PUB {t} ", rb'E_INVALID PUB publish token "" is not valid'),
        (b"PUB {t} \xff\xfe", rb'E_INVALID PUB publish token "\xff\xfe" is not valid'),
        (b"PUB {t} " + b"x" * 65, b'E_INVALID PUB publish token "' + b"x" * 65 + b'" is not valid'),
        (b"PUB {t} a b", b"E_INVALID PUB invalid number of parameters"),
        (b"MPUB {t} a\0b", rb'E_INVALID MPUB publish token "a\x00b" is not valid'),
        (b"MPUB {t} a ", b"E_INVALID MPUB invalid number of parameters"),
        (b"DPUB {t} 0 a,b", rb'E_INVALID DPUB publish token "a,b" is not valid'),
        (b"DPUB {t} 0 a b c", b"E_INVALID DPUB invalid number of parameters"),
    ],
)
def test_hostile_tokens_get_the_documented_error(
    nsqd: Nsqd, connect: Connect, topic: str, line: bytes, error: bytes
) -> None:
    session = with_tokens(connect(nsqd))
    session.send(line.replace(b"{t}", topic.encode()) + b"\n" + sized(b"x"))
    assert session.until_closed() == [(FRAME_ERROR, error)]
    assert not topic_stats(nsqd, topic)


def test_a_refused_publish_leaves_its_token_free(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    head = b"MPUB %b a\n" % topic.encode()
    session = with_tokens(connect(nsqd))
    session.send(head + u32(13) + u32(2) + sized(b"1") + u32(0))
    (frame,) = session.until_closed()
    assert frame.data.startswith(b"E_BAD_MESSAGE MPUB invalid message(1) body size 0")
    session = with_tokens(connect(nsqd))
    assert session.request(token_mpub(topic, b"a", [b"1", b"2"])) == OK
    assert stored(connect, nsqd, topic) == [b"1", b"2"]


@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["", "group-commit"])
def test_tokens_over_tcp_are_known_after_a_kill(
    own_nsqd: Nsqd, connect: Connect, flags: tuple[str, ...]
) -> None:
    own_nsqd.flags = [*flags]
    own_nsqd.start()
    for _ in range(2):
        session = with_tokens(connect(own_nsqd))
        for number in range(20):
            token = b"t-%d" % number
            assert session.request(token_mpub("t", token, [token, b"x"])) == OK
        own_nsqd.kill()
        own_nsqd.start()
    session = connect(own_nsqd)
    session.subscribe("t", "ch", ready=100)
    assert len(session.messages(40)) == 40
    assert not session.before_barrier()
