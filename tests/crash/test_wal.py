"""Small publishes go to the write-ahead log first: a kill, a failing disk and damage cost none that
was acknowledged, and bring none that was not."""

import resource
from contextlib import ExitStack, suppress

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    EFBIG_REASON,
    KillableNsqd,
    create_channel,
    drain,
    refusal,
)
from tests.kit.daemons import wait_until

TOPICS = [f"t{number}" for number in range(30)]
ROUNDS = 4


@pytest.fixture
def nsqd(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon with a channel c on each of the topics."""
    nsqd = new_nsqd().start()
    for topic in TOPICS:
        create_channel(nsqd, topic, "c")
    return nsqd


def wal_bytes(nsqd: KillableNsqd) -> int:
    size_bytes = 0
    for path in nsqd.wal_files():
        with suppress(FileNotFoundError):  # it was flushed meanwhile
            size_bytes += path.stat().st_size
    return size_bytes


def publish_rounds(nsqd: KillableNsqd, rounds: int = ROUNDS) -> list[bytes]:
    """One message to each topic in turn, each round in one piece; returns what each topic got."""
    bodies = [b"%d" % number for number in range(rounds)]
    with nsqd.connect() as client:
        for body in bodies:
            for topic in TOPICS:
                client.send_command(f"PUB {topic}", body)
            assert [client.read_frame()[1] for _ in TOPICS] == [b"OK"] * len(TOPICS)
    return bodies


def kill_before_a_flush(nsqd: KillableNsqd) -> list[bytes]:
    """Publishes, and kills while the write-ahead log has some of it; returns what each got."""
    sent: list[bytes] = []
    for _ in range(100):
        sent += publish_rounds(nsqd)
        if wal_bytes(nsqd):
            nsqd.kill()
            break
    assert wal_bytes(nsqd)
    return sent


def bodies_of(nsqd: KillableNsqd, topic: str, count: int) -> list[bytes]:
    return [message.body for message in drain(nsqd, topic, "c", count)]


def test_a_kill_loses_nothing_that_only_the_write_ahead_log_has(nsqd: KillableNsqd) -> None:
    sent = kill_before_a_flush(nsqd)
    nsqd.again()
    assert "messages came from the write-ahead log" in nsqd.log_since_start()
    for topic in TOPICS:
        assert nsqd.depth(topic, "c") == len(sent)
        assert bodies_of(nsqd, topic, len(sent)) == sent


def test_a_kill_loses_nothing_that_came_over_http(nsqd: KillableNsqd) -> None:
    sent = publish_rounds(nsqd, 1)
    for number in range(3):
        for topic in TOPICS[:5]:
            status, _ = nsqd.http("POST", f"/pub?topic={topic}", b"http %d" % number)
            assert status == 200
        sent.append(b"http %d" % number)
    nsqd.kill()
    nsqd.again()
    for topic in TOPICS[:5]:
        assert bodies_of(nsqd, topic, len(sent)) == sent


def test_a_kill_loses_nothing_that_waits_for_delivery(nsqd: KillableNsqd) -> None:
    """Consumers wait on all topics, so what is published to them is delivered a little later."""
    with ExitStack() as stack:
        consumers = [stack.enter_context(nsqd.connect()) for _ in TOPICS]
        for topic, consumer in zip(TOPICS, consumers, strict=True):
            consumer.sub(topic, "c")
            consumer.rdy(100)
        sent = publish_rounds(nsqd, 50)
        nsqd.kill()
    nsqd.again()
    for topic in TOPICS:
        assert sorted(bodies_of(nsqd, topic, len(sent))) == sorted(sent)


def test_a_second_kill_right_after_the_start_brings_nothing_twice(nsqd: KillableNsqd) -> None:
    sent = kill_before_a_flush(nsqd)
    for _ in range(2):
        nsqd.again()
        nsqd.kill()
    nsqd.again()
    more = publish_rounds(nsqd, 1)
    for topic in TOPICS[:5]:
        received = drain(nsqd, topic, "c", len(sent) + 1)
        assert [message.body for message in received] == sent + more
        assert len({message.id for message in received}) == len(received)


def test_whoever_asks_sees_what_was_acknowledged(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client:
        for number in range(50):
            topic = TOPICS[number % 5]
            client.publish(topic, b"x")
            assert nsqd.depth(topic, "c") == number // 5 + 1
    nsqd.act("/channel/empty", topic=TOPICS[0], channel="c")
    create_channel(nsqd, TOPICS[1], "later")
    assert nsqd.depth(TOPICS[0], "c") == 0
    assert nsqd.depth(TOPICS[1], "later") == 0
    nsqd.kill()
    nsqd.again()
    assert nsqd.depth(TOPICS[0], "c") == 0
    assert nsqd.depth(TOPICS[1], "c") == 10
    assert nsqd.depth(TOPICS[1], "later") == 0


def test_a_deleted_topic_does_not_come_back_from_the_write_ahead_log(nsqd: KillableNsqd) -> None:
    publish_rounds(nsqd)
    nsqd.act("/topic/delete", topic="t0")
    create_channel(nsqd, "t0", "c")
    with nsqd.connect() as client:
        client.publish("t0", b"new")
        client.publish("t0", b"newer")
    nsqd.kill()
    nsqd.again()
    assert bodies_of(nsqd, "t0", 2) == [b"new", b"newer"]


def test_a_clean_stop_leaves_no_write_ahead_log(nsqd: KillableNsqd) -> None:
    sent = publish_rounds(nsqd)
    nsqd.stop()
    assert nsqd.wal_files() == []
    nsqd.start()
    assert bodies_of(nsqd, "t7", len(sent)) == sent


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\1\0 cut short", bytes(100), b"\xff" * 100])
def test_what_follows_on_the_last_record_costs_nothing(nsqd: KillableNsqd, tail: bytes) -> None:
    sent = kill_before_a_flush(nsqd)
    for path in nsqd.wal_files():
        with path.open("ab") as file:
            file.write(tail)
    nsqd.again()
    assert bodies_of(nsqd, "t3", len(sent)) == sent
    assert "WAL: " in nsqd.log_since_start()
    if tail.strip(b"\xff\0") == b"" and len(tail) == 100:  # not just a record that ends early
        assert list(nsqd.data_path.glob("wal-*.bad"))


def test_a_publish_that_cannot_be_written_is_refused_and_does_not_come(
    nsqd: KillableNsqd,
) -> None:
    sent = publish_rounds(nsqd)
    with nsqd.failing_disk():
        for topic in TOPICS[:3]:
            with nsqd.connect() as client:
                answer = refusal(client, f"PUB {topic}", b"refused")
                assert answer == f"E_PUB_FAILED PUB failed {EFBIG_REASON}"
    sent += publish_rounds(nsqd, 1)
    nsqd.kill()
    nsqd.again()
    for topic in TOPICS[:3]:
        assert bodies_of(nsqd, topic, len(sent)) == sent


def fill_up(nsqd: KillableNsqd) -> None:
    """The segment of t0 has more than 50,000 bytes, which will be more than a file may have."""
    with nsqd.connect() as client:
        client.publish("t0", bytes(50_000))
        client.publish("t0", b"first")
    wait_until(lambda: wal_bytes(nsqd) == 0)


def test_what_cannot_be_flushed_is_safe_in_the_write_ahead_log(nsqd: KillableNsqd) -> None:
    fill_up(nsqd)
    with nsqd.limited(resource.RLIMIT_FSIZE, 50_000):
        with nsqd.connect() as client:
            client.publish("t0", b"safe")
            client.publish("t1", b"other")
        wait_until(lambda: b"failed to write" in nsqd.http("GET", "/ping")[1])
        for _ in range(2):
            with nsqd.connect() as client:
                answer = refusal(client, "PUB t0", b"refused")
                assert answer == f"E_PUB_FAILED PUB failed {EFBIG_REASON}"
        with nsqd.connect() as client:
            client.publish("t1", b"and more")
        assert (nsqd.depth("t0", "c"), nsqd.depth("t1", "c")) == (3, 2)
        nsqd.kill()
    nsqd.again()
    assert bodies_of(nsqd, "t0", 3) == [bytes(50_000), b"first", b"safe"]
    assert bodies_of(nsqd, "t1", 2) == [b"other", b"and more"]


def test_what_cannot_be_flushed_is_read_all_the_same(nsqd: KillableNsqd) -> None:
    fill_up(nsqd)
    with nsqd.limited(resource.RLIMIT_FSIZE, 50_000):
        with nsqd.connect() as client:
            client.publish("t0", b"safe")
        wait_until(lambda: b"failed to write" in nsqd.http("GET", "/ping")[1])
        assert bodies_of(nsqd, "t0", 3) == [bytes(50_000), b"first", b"safe"]


def test_what_could_not_be_flushed_is_as_soon_as_it_can_be(nsqd: KillableNsqd) -> None:
    fill_up(nsqd)
    with nsqd.limited(resource.RLIMIT_FSIZE, 50_000):
        with nsqd.connect() as client:
            client.publish("t0", b"safe")
        wait_until(lambda: b"failed to write" in nsqd.http("GET", "/ping")[1])
    wait_until(lambda: wal_bytes(nsqd) == 0)
    wait_until(lambda: nsqd.http("GET", "/ping") == (200, b"OK"))
    assert bodies_of(nsqd, "t0", 3) == [bytes(50_000), b"first", b"safe"]
    sent = publish_rounds(nsqd)  # and all is as before
    assert bodies_of(nsqd, "t1", len(sent)) == sent


def test_a_stop_that_cannot_flush_leaves_it_to_the_next_start(nsqd: KillableNsqd) -> None:
    fill_up(nsqd)
    with nsqd.limited(resource.RLIMIT_FSIZE, 50_000):
        with nsqd.connect() as client:
            client.publish("t0", b"safe")
        nsqd.stop()
    assert wal_bytes(nsqd) > 0
    nsqd.start()
    assert bodies_of(nsqd, "t0", 3) == [bytes(50_000), b"first", b"safe"]


def test_delays_and_tokens_outlive_a_kill_before_a_flush(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client:
        client.publish("t0", b"now")
        client.send_command("DPUB t0 600000", b"later")
        assert client.read_response() == b"OK"
    assert nsqd.http("POST", "/pub?topic=t0&token=a", b"once") == (200, b"OK")
    assert wal_bytes(nsqd)
    nsqd.kill()
    nsqd.again()
    assert nsqd.http("POST", "/pub?topic=t0&token=a", b"once") == (200, b"OK")
    assert bodies_of(nsqd, "t0", 2) == [b"now", b"once"]
    channel = nsqd.stats("t0")["topics"][0]["channels"][0]
    assert (channel["deferred_count"], channel["depth"]) == (1, 0)
