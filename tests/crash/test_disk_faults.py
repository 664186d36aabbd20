"""A disk that cannot be written to: publishers are told, nothing queued is lost, and it heals.

RLIMIT_FSIZE stands in for a full disk: it can be set on a running process, and makes every write
fail at once. `test_full_disk` has the real thing.
"""

import json
import resource

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    EFBIG_REASON,
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    mpub_body,
    refusal,
    until_barrier,
)
from tests.kit.daemons import ErrorFrame, wait_until

WRITE_FAILED = {"message": "WRITE_FAILED", "detail": EFBIG_REASON}
SENT = [b"%d" % number for number in range(100)]


@pytest.fixture
def nsqd(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon whose topic t has a channel c with messages waiting in it."""
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    return nsqd


def ping(nsqd: KillableNsqd) -> tuple[int, bytes]:
    return nsqd.http("GET", "/ping")


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize(
    ("line", "body", "answer"),
    [
        ("PUB {}", b"x", f"E_PUB_FAILED PUB failed {EFBIG_REASON}"),
        ("MPUB {}", mpub_body([b"x", b"y"]), f"E_MPUB_FAILED MPUB failed {EFBIG_REASON}"),
        ("DPUB {} 1", b"x", f"E_DPUB_FAILED DPUB failed {EFBIG_REASON}"),
    ],
    ids=["PUB", "MPUB", "DPUB"],
)
def test_publish_that_cannot_be_written_is_refused(
    nsqd: KillableNsqd, topic: str, line: str, body: bytes, answer: str
) -> None:
    with nsqd.connect() as client, nsqd.failing_disk():
        assert refusal(client, line.format(topic), body) == answer
        with pytest.raises(EOFError):
            client.read_frame()
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize("path", ["/pub?topic={}", "/mpub?topic={}", "/pub?topic={}&defer=1"])
def test_http_publish_that_cannot_be_written_is_answered_503(
    nsqd: KillableNsqd, topic: str, path: str
) -> None:
    with nsqd.failing_disk():
        status, body = nsqd.http("POST", path.format(topic), b"x")
        assert (status, json.loads(body)) == (503, WRITE_FAILED)
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


def test_only_the_publishes_that_failed_are_refused_in_a_pipeline(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client:
        client.publish("t", b"before")
        with nsqd.failing_disk():
            assert refusal(client, "PUB t", b"refused").startswith("E_PUB_FAILED ")
    with nsqd.connect() as client:
        client.publish("t", b"after")
    expected = [*SENT, b"before", b"after"]
    assert [message.body for message in drain(nsqd, "t", "c", len(expected))] == expected


def test_subscribing_to_a_new_channel_is_refused(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client, nsqd.failing_disk():
        client.send_command("SUB t new")
        with pytest.raises(ErrorFrame, match=f"^E_SUB_FAILED SUB failed {EFBIG_REASON}$"):
            client.read_response()
    assert nsqd.channel_stats("t", "new") == {}
    assert drain(nsqd, "t", "new", 0) == []


def test_ping_says_no_and_recovers_without_a_publish(nsqd: KillableNsqd) -> None:
    with nsqd.failing_disk():
        assert ping(nsqd) == (200, b"OK")
        with nsqd.connect() as client:
            refusal(client, "PUB t", b"x")
        status, body = ping(nsqd)
        assert status == 500
        assert body.startswith(b"NOK - ")
        assert EFBIG_REASON.encode() in body
        assert nsqd.stats()["health"] == body.decode()
    wait_until(lambda: ping(nsqd) == (200, b"OK"))


def test_consumers_work_on_and_what_they_finish_stays_finished(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as consumer:
        consumer.sub("t", "c")
        consumer.rdy(10)
        with nsqd.failing_disk():
            with nsqd.connect() as client:
                refusal(client, "PUB t", b"x")
            for body in SENT[:50]:
                message = consumer.read_message()
                assert message.body == body
                consumer.fin(message.id)
            until_barrier(consumer)
        await_checkpoint(nsqd, "t", "c")  # what could not be written is, once it can be
        nsqd.kill()
    nsqd.again()
    received = {message.body for message in drain(nsqd, "t", "c", 50)}
    assert received == set(SENT[50:])


def test_kill_while_the_disk_fails_loses_nothing_acknowledged(nsqd: KillableNsqd) -> None:
    with nsqd.failing_disk():
        with nsqd.connect() as client:
            refusal(client, "PUB t", b"refused")
        nsqd.kill()
    nsqd.again()
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


def test_write_cut_short_leaves_no_trace(nsqd: KillableNsqd) -> None:
    """The limit lies inside the message: part of it is written before the write fails."""
    nsqd.flush("t")
    size_bytes = nsqd.segments("t")[0].stat().st_size
    with (
        nsqd.connect() as client,
        nsqd.limited(resource.RLIMIT_FSIZE, max(size_bytes, 64 << 10) + 1000),
    ):
        assert refusal(client, "PUB t", bytes(500_000)) == f"E_PUB_FAILED PUB failed {EFBIG_REASON}"
    assert nsqd.segments("t")[0].stat().st_size == size_bytes
    with nsqd.connect() as client:
        client.publish("t", b"after")
    nsqd.kill()
    nsqd.again()
    expected = [*SENT, b"after"]
    assert [message.body for message in drain(nsqd, "t", "c", len(expected))] == expected
    assert "torn" not in nsqd.log_since_start()


def test_many_delayed_publishes_at_once_are_written(nsqd: KillableNsqd) -> None:
    count = 1500
    create_channel(nsqd, "many", "c")
    with nsqd.connect() as client:
        commands = (b"DPUB many %d\n\0\0\0\1x" % (1 + number % 7) for number in range(count))
        client.send(b"".join(commands))
        assert [client.read_response() for _ in range(count)] == [b"OK"] * count
    wait_until(lambda: nsqd.channel_stats("many", "c")["deferred_count"] == 0)  # all are due
    assert len(drain(nsqd, "many", "c", count)) == count


# -- emptying -------------------------------------------------------------------------------------


def empty(nsqd: KillableNsqd, path: str) -> int:
    return nsqd.http("POST", path)[0]


def test_channel_that_cannot_be_written_as_empty_is_told_and_written_later(
    nsqd: KillableNsqd,
) -> None:
    create_channel(nsqd, "t", "other")
    with nsqd.connect() as client:
        client.mpub("t", SENT)  # for both channels
    path = "/channel/empty?topic=t&channel=c"
    with nsqd.failing_disk():
        assert empty(nsqd, path) == 500
        assert empty(nsqd, path) == 500
        assert ping(nsqd)[0] == 500
    wait_until(lambda: empty(nsqd, path) == 200)
    nsqd.kill()
    nsqd.again()
    assert drain(nsqd, "t", "c", 0) == []
    assert [message.body for message in drain(nsqd, "t", "other", len(SENT))] == SENT


def test_what_a_failed_empty_dropped_stays_dropped_without_another(nsqd: KillableNsqd) -> None:
    create_channel(nsqd, "t", "other")
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    with nsqd.failing_disk():
        assert empty(nsqd, "/channel/empty?topic=t&channel=c") == 500
    await_checkpoint(nsqd, "t", "c")
    nsqd.kill()
    nsqd.again()
    assert drain(nsqd, "t", "c", 0) == []


def test_topic_that_cannot_be_written_as_empty_is_told_and_written_later(
    nsqd: KillableNsqd,
) -> None:
    nsqd.act("/topic/create", topic="waiting")
    nsqd.act("/hold/create", topic="waiting", hold="job")  # the log stays
    with nsqd.connect() as client:
        client.mpub("waiting", SENT)
    manifest = nsqd.topic_path("waiting") / "topic.json"
    written = manifest.read_bytes()
    with nsqd.failing_disk():
        assert empty(nsqd, "/topic/empty?topic=waiting") == 500
    wait_until(lambda: manifest.read_bytes() != written)
    nsqd.kill()
    nsqd.again()
    assert nsqd.stats("waiting")["topics"][0]["depth"] == 0
    assert drain(nsqd, "waiting", "c", 0) == []
    assert len(nsqd.segments("waiting")) == 1


def test_a_pause_that_cannot_be_written_is_refused_and_takes_nothing_from_channels(
    nsqd: KillableNsqd,
) -> None:
    nsqd.act("/topic/create", topic="new")
    nsqd.act("/channel/create", topic="new", channel="c")
    in_the_way = nsqd.topic_path("new") / "topic.json.tmp"
    in_the_way.mkdir()
    with nsqd.connect() as client:
        client.mpub("new", SENT)
    assert nsqd.http("POST", "/topic/pause?topic=new")[0] == 500
    assert not nsqd.stats("new")["topics"][0]["paused"]
    in_the_way.rmdir()
    nsqd.act("/topic/pause", topic="new")
    nsqd.kill()
    nsqd.again()
    (topic,) = nsqd.stats("new")["topics"]
    assert (topic["paused"], topic["depth"]) == (True, 0)
    assert [message.body for message in drain(nsqd, "new", "c", len(SENT))] == SENT


def test_paused_topic_that_cannot_be_written_as_empty_is_told(nsqd: KillableNsqd) -> None:
    nsqd.act("/topic/pause", topic="t")
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    with nsqd.failing_disk():
        assert empty(nsqd, "/topic/empty?topic=t") == 500
    wait_until(lambda: empty(nsqd, "/topic/empty?topic=t") == 200)
    nsqd.kill()
    nsqd.again()
    nsqd.act("/topic/unpause", topic="t")
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


def test_one_topic_of_many_that_cannot_be_written_is_refused_at_its_place(
    nsqd: KillableNsqd,
) -> None:
    topics = [f"many-{number}" for number in range(10)]
    full = topics[5]
    for topic in topics:
        create_channel(nsqd, topic, "c")
    with nsqd.connect() as client:
        client.publish(full, bytes(50_000))
        for topic in topics:
            client.publish(topic, b"0")
    nsqd.await_flush()
    # A file may have 50,000 bytes: one topic's log has more, and cannot be flushed.
    with nsqd.limited(resource.RLIMIT_FSIZE, 50_000), nsqd.connect() as client:
        client.publish(full, b"safe")
        wait_until(lambda: f"failed to write topic {full}".encode() in nsqd.http("GET", "/ping")[1])
        # In one piece: nsqd closes the connection at the refusal.
        client.send(b"".join(b"DPUB %b 0\n\0\0\0\1" % topic.encode() + b"1" for topic in topics))
        frames = [client.read_frame() for _ in range(6)]
        assert [data for _, data in frames[:5]] == [b"OK"] * 5
        assert frames[5][1].startswith(f"E_DPUB_FAILED DPUB failed {EFBIG_REASON}".encode())
        with pytest.raises((EOFError, ConnectionResetError)):
            client.read_frame()
    kept = [message.body for message in drain(nsqd, full, "c", 3)]
    assert kept == [bytes(50_000), b"0", b"safe"]
    for topic in topics[:5]:
        assert [message.body for message in drain(nsqd, topic, "c", 2)] == [b"0", b"1"]
