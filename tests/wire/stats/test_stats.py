"""/stats: names, order and meaning of its figures, in JSON and as text, and its filters."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_channel, await_topic
from tests.kit.wire.commands import identify, sub
from tests.kit.wire.session import OK, Connect, Session
from tests.kit.wire.web import NSQ_HEADER, TEXT_TYPE, ask

TOPIC_KEYS = """topic_name channels depth backend_depth message_count message_bytes paused
    e2e_processing_latency""".split()
CHANNEL_KEYS = """channel_name depth backend_depth in_flight_count deferred_count message_count
    requeue_count timeout_count client_count clients paused e2e_processing_latency""".split()
CLIENT_KEYS = """client_id hostname version remote_address state ready_count in_flight_count
    message_count finish_count requeue_count connect_ts sample_rate deflate snappy user_agent
    pub_counts tls tls_cipher_suite tls_version tls_negotiated_protocol
    tls_negotiated_protocol_is_mutual""".split()
MEMORY_KEYS = """heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes
    gc_pause_usec_100 gc_pause_usec_99 gc_pause_usec_95 next_gc_bytes gc_total_runs""".split()
# Not in the release that the suite is compared with.
NEWER_KEYS = """zone_local_msg_count region_local_msg_count global_msg_count topology_zone
    topology_region oldest_timestamp longest_held_offset longest_held_since log_bytes""".split()

NO_LATENCY = {"count": 0, "percentiles": None}


def keys(figures: dict[str, Any]) -> list[str]:
    return [key for key in figures if key not in NEWER_KEYS]


def get_stats(nsqd: Nsqd, query: str = "") -> dict[str, Any]:
    answer = ask(nsqd, "GET", f"/stats?format=json{query}")
    assert answer.headers[NSQ_HEADER] == "nsq; version=1.0"
    return dict(answer.json())


def get_text(nsqd: Nsqd, query: str = "") -> str:
    answer = ask(nsqd, "GET", f"/stats?{query}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, TEXT_TYPE)
    return answer.body.decode()


def port_of(session: Session) -> int:
    return int(session.raw.socket.getsockname()[1])


@pytest.fixture
def fresh_nsqd(own_nsqd: Nsqd) -> Iterator[Nsqd]:
    """With no topics and no clients yet."""
    with own_nsqd:
        yield own_nsqd


def test_json_of_an_idle_daemon(fresh_nsqd: Nsqd) -> None:
    stats = get_stats(fresh_nsqd)
    assert list(stats) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (stats["version"], stats["health"]) == ("1.3.0", "OK")
    assert stats["start_time"] == ask(fresh_nsqd, "GET", "/info").json()["start_time"]
    assert (stats["topics"], stats["producers"]) == ([], None)
    assert list(stats["memory"]) == MEMORY_KEYS
    assert all(isinstance(figure, int) and figure >= 0 for figure in stats["memory"].values())
    assert stats["memory"]["heap_objects"] > 0
    assert stats["memory"]["heap_in_use_bytes"] > 0


@pytest.mark.parametrize("value", ["", "=", "=true", "=1", "=TRUE", "=no"])
def test_included_unless_told_otherwise(
    nsqd: Nsqd, connect: Connect, topic: str, value: str
) -> None:
    connect().subscribe(topic, "ch")
    connect().publish(topic, b"x")
    stats = get_stats(nsqd, f"&topic={topic}&include_mem{value}&include_clients{value}")
    assert "memory" in stats
    assert len(stats["topics"][0]["channels"][0]["clients"]) == 1
    assert stats["producers"]


@pytest.mark.parametrize("value", ["false", "0"])
def test_clients_and_memory_can_be_left_out(
    nsqd: Nsqd, connect: Connect, topic: str, value: str
) -> None:
    connect().subscribe(topic, "ch")
    connect().publish(topic, b"x")
    stats = get_stats(nsqd, f"&topic={topic}&include_mem={value}&include_clients={value}")
    assert list(stats) == ["version", "health", "start_time", "topics", "producers"]
    channel = stats["topics"][0]["channels"][0]
    assert (channel["client_count"], channel["clients"]) == (1, None)
    assert stats["producers"] is None
    text = get_text(nsqd, f"include_mem={value}&include_clients={value}")
    assert "Memory:" not in text
    assert "[V2 " not in text


def test_filters(nsqd: Nsqd, topic: str) -> None:
    for name in (topic, f"{topic}-b"):
        act(nsqd, "/topic/create", topic=name)
        for channel in ("c2", "c1"):
            act(nsqd, "/channel/create", topic=name, channel=channel)
    act(nsqd, "/channel/create", topic=topic, channel=topic)

    def names(query: str) -> list[tuple[str, list[str]]]:
        found = get_stats(nsqd, query)["topics"]
        return [(t["topic_name"], [c["channel_name"] for c in t["channels"]]) for t in found]

    assert names(f"&topic={topic}-b") == [(f"{topic}-b", ["c1", "c2"])]
    assert names(f"&topic={topic}&channel=c2") == [(topic, ["c2"])]
    assert names(f"&channel={topic}") == [(topic, [topic])]
    assert names(f"&topic={topic}-b&channel={topic}") == []
    assert names(f"&topic={topic}-b&channel=") == [(f"{topic}-b", ["c1", "c2"])]


@pytest.mark.deviation
def test_the_oldest_unfinished_message_of_a_channel(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=1)
    hold = f"/hold/create?topic={topic}&hold=held&to=beginning"
    assert ask(nsqd, "POST", hold).status == 200

    def told() -> list[int | None]:
        channels = get_stats(nsqd, f"&topic={topic}")["topics"][0]["channels"]
        return [channel.get("oldest_timestamp") for channel in channels]

    assert told() == [None, None]
    producer.publish(topic, b"1")
    first = consumer.message()
    producer.publish(topic, b"2")
    assert told() == [first.timestamp_ns, first.timestamp_ns]
    consumer.finish(first)
    second = consumer.message()
    assert second.timestamp_ns > first.timestamp_ns
    assert told() == [second.timestamp_ns, first.timestamp_ns]
    consumer.finish(second)
    assert consumer.before_barrier() == []
    assert told() == [None, first.timestamp_ns]


@pytest.mark.deviation
def test_the_oldest_message_is_known_after_a_restart(own_nsqd: Nsqd, connect: Connect) -> None:
    """It is on disk then, in a file that the new process has not read yet."""
    own_nsqd.flags += ["--mem-queue-size=1"]
    with own_nsqd:
        act(own_nsqd, "/topic/create", topic="t")
        act(own_nsqd, "/channel/create", topic="t", channel="ch")
        for index in range(20):
            connect(own_nsqd).publish("t", b"%d" % index)

        def oldest() -> int:
            return int(get_stats(own_nsqd)["topics"][0]["channels"][0]["oldest_timestamp"])

        before = oldest()
        first = ask(own_nsqd, "GET", "/log/peek?topic=t&limit=1").json()["messages"][0]
        assert before == first["timestamp"]
        own_nsqd.restart()
        assert oldest() == before
        own_nsqd.kill()
        own_nsqd.start()
        assert oldest() == before


def test_an_unknown_topic_is_no_list_at_all(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connect().publish(topic, b"x")
    stats = get_stats(nsqd, "&topic=no-such-topic")
    assert (stats["topics"], stats["producers"]) == (None, None)
    assert get_stats(nsqd, "&channel=no-such-channel")["topics"] == []
    text = get_text(nsqd, "topic=no-such-topic")
    assert "\nTopics: None\n" in text
    assert "\nProducers: None\n" in text


def test_topics_and_channels_are_sorted(nsqd: Nsqd, topic: str) -> None:
    names = [f"{topic}{suffix}" for suffix in ("_", "-", ".", "B", "a", "10", "9")]
    for name in names:
        act(nsqd, "/topic/create", topic=name)
    for channel in ("b", "B", "a#ephemeral", "a", "-", "_"):
        act(nsqd, "/channel/create", topic=names[0], channel=channel)
    seen = [each["topic_name"] for each in get_stats(nsqd)["topics"]]
    assert seen == sorted(seen)
    assert set(names) <= set(seen)
    channels = get_stats(nsqd, f"&topic={names[0]}")["topics"][0]["channels"]
    seen = [each["channel_name"] for each in channels]
    assert seen == ["-", "B", "_", "a", "a#ephemeral", "b"]


def test_figures_of_a_topic_and_its_channel(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=3)
    connect().publish(topic, b"1", b"22", b"333", b"4444")
    done, again, _ = session.messages(3)
    session.finish(done)
    session.send(b"RDY 0\n", f"REQ {again.id} 5000\n".encode())
    # The last one was on its way when RDY became 0, or waits: the other figures are certain.
    await_channel(nsqd, topic, "ch", requeue_count=1, deferred_count=1)
    stats = get_stats(nsqd, f"&topic={topic}")["topics"][0]
    assert keys(stats) == TOPIC_KEYS
    assert (stats["topic_name"], stats["paused"], stats["depth"]) == (topic, False, 0)
    assert (stats["message_count"], stats["message_bytes"]) == (4, 10)
    assert stats["e2e_processing_latency"] == NO_LATENCY
    (channel,) = stats["channels"]
    assert keys(channel) == CHANNEL_KEYS
    assert channel["channel_name"] == "ch"
    assert channel["depth"] + channel["in_flight_count"] == 2
    assert (channel["message_count"], channel["timeout_count"]) == (4, 0)
    assert (channel["client_count"], channel["paused"]) == (1, False)
    assert channel["e2e_processing_latency"] == NO_LATENCY


def test_figures_of_a_consumer(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    before_s = int(time.time())
    session = connect()
    fields = {"client_id": "me", "hostname": "here", "user_agent": "test/1", "sample_rate": 99}
    session.subscribe(topic, "ch", ready=4, **fields)
    connect().publish(topic, b"1", b"2", b"3")
    messages = session.messages(3)
    session.finish(messages[0])
    session.send(f"REQ {messages[1].id} 5000\n".encode())
    await_channel(nsqd, topic, "ch", requeue_count=1, in_flight_count=1)
    (client,) = get_stats(nsqd, f"&topic={topic}")["topics"][0]["channels"][0]["clients"]
    assert keys(client) == [key for key in CLIENT_KEYS if key != "pub_counts"]
    assert before_s <= client.pop("connect_ts") <= time.time()
    assert {key: client[key] for key in keys(client)} == {
        "client_id": "me",
        "hostname": "here",
        "version": "V2",
        "remote_address": f"127.0.0.1:{port_of(session)}",
        "state": 3,
        "ready_count": 4,
        "in_flight_count": 1,
        "message_count": 3,
        "finish_count": 1,
        "requeue_count": 1,
        "sample_rate": 99,
        "deflate": False,
        "snappy": False,
        "user_agent": "test/1",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


@pytest.mark.deviation
def test_what_a_consumer_has_had_longest(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=4)
    before_ns = time.time_ns()
    connect().publish(topic, b"1", b"2", b"3")
    messages = session.messages(3)

    def held() -> tuple[int | None, int]:
        (client,) = get_stats(nsqd, f"&topic={topic}")["topics"][0]["channels"][0]["clients"]
        return client.get("longest_held_offset"), client.get("longest_held_since", 0)

    session.finish(messages[0])
    await_channel(nsqd, topic, "ch", in_flight_count=2)
    offset, since_ns = held()
    assert offset == 1
    assert before_ns - 10**9 < since_ns <= time.time_ns() + 10**9  # two clocks
    for message in messages[1:]:
        session.finish(message)
    await_channel(nsqd, topic, "ch", in_flight_count=0)
    assert held() == (None, 0)


@pytest.mark.deviation  # newer than the release it is compared with
def test_a_client_shows_its_topology(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connect().subscribe(topic, "ch", topology_zone="z1", topology_region="r1")
    (client,) = get_stats(nsqd, f"&topic={topic}")["topics"][0]["channels"][0]["clients"]
    assert list(client)[15:17] == ["topology_zone", "topology_region"]
    assert (client["topology_zone"], client["topology_region"]) == ("z1", "r1")


def test_a_closing_consumer_shows_its_state(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=1)
    assert session.request(b"CLS\n").data == b"CLOSE_WAIT"
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["state"], client["ready_count"]) == (4, 0)


def test_who_has_published_is_a_producer(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    address = f"127.0.0.1:{port_of(session)}"

    def found(query: str = "") -> list[dict[str, Any]]:
        producers = get_stats(nsqd, query)["producers"] or []
        return [each for each in producers if each["remote_address"] == address]

    assert session.request(identify({"client_id": "p", "hostname": "h"})) == OK
    assert found() == []
    session.publish(topic, b"1", b"2")
    (producer,) = found()
    assert keys(producer) == CLIENT_KEYS
    assert producer["pub_counts"] == [{"topic": topic, "count": 2}]
    assert (producer["client_id"], producer["hostname"], producer["state"]) == ("p", "h", 0)

    session.publish(f"{topic}-b", b"3")
    assert found(f"&topic={topic}-b")[0]["pub_counts"] == [{"topic": f"{topic}-b", "count": 1}]
    assert len(found()[0]["pub_counts"]) == 1
    act(nsqd, "/topic/create", topic=f"{topic}-c")
    assert "pub_counts" not in found(f"&topic={topic}-c")[0]

    assert session.request(sub(topic, "ch")) == OK
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert consumer["remote_address"] == address
    assert consumer["pub_counts"] == [{"topic": topic, "count": 2}]
    assert found()[0]["state"] == 3


def test_before_identify_a_client_is_its_host(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connect().subscribe(topic, "ch")
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["client_id"], client["hostname"]) == ("127.0.0.1", "127.0.0.1")
    assert client["user_agent"] == ""


def test_http_publishers_are_not_producers(fresh_nsqd: Nsqd, topic: str) -> None:
    assert ask(fresh_nsqd, "POST", f"/pub?topic={topic}", b"x").status == 200
    assert get_stats(fresh_nsqd)["producers"] is None


HEAD = re.compile(
    r"nsqd v1\.3\.0 \(built w/\S+\)\n"
    r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\n"
    r"uptime [\d.]+(ms|s)\n"
    r"\nHealth: OK\n"
    r"(?P<memory>\nMemory:\n(   [a-z0-9_]+ +\t\d+\n){9})?"
    r"(?P<rest>\nTopics:.*)",
    re.DOTALL,
)


def test_text_of_an_idle_daemon(fresh_nsqd: Nsqd) -> None:
    match = HEAD.fullmatch(get_text(fresh_nsqd))
    assert match
    lines = match["memory"].splitlines()[2:]
    assert [line.split()[0] for line in lines] == MEMORY_KEYS
    assert {line.index("\t") for line in lines} == {28}
    assert match["rest"] == "\nTopics: None\n\nProducers: None\n"
    assert HEAD.fullmatch(get_text(fresh_nsqd, "include_mem=0"))["memory"] is None  # type: ignore[index]


def test_text_of_topics_channels_and_clients(fresh_nsqd: Nsqd, connect: Connect) -> None:
    session, producer = connect(fresh_nsqd), connect(fresh_nsqd)
    session.subscribe("t1", "ch", ready=5, hostname="here", user_agent="test/1")
    producer.publish("t1", b"1", b"2", b"3")
    done, *_ = session.messages(3)
    session.finish(done)
    act(fresh_nsqd, "/topic/create", topic="a-topic-with-a-long-name")
    act(fresh_nsqd, "/channel/create", topic="a-topic-with-a-long-name", channel="x" * 30)
    act(fresh_nsqd, "/topic/pause", topic="a-topic-with-a-long-name")
    act(fresh_nsqd, "/channel/pause", topic="a-topic-with-a-long-name", channel="x" * 30)
    await_channel(fresh_nsqd, "t1", "ch", in_flight_count=2)
    await_topic(fresh_nsqd, "t1", depth=0)

    match = HEAD.fullmatch(get_text(fresh_nsqd, "format=text"))
    assert match
    rest = re.sub(r"connected: \d+s", "connected: _s", match["rest"])
    assert rest == (
        "\nTopics:"
        "\n*P [a-topic-with-a-long-name] depth: 0     be-depth: 0     msgs: 0        e2e%: \n"
        f"   *P [{'x' * 30}] depth: 0     be-depth: 0     inflt: 0    def: 0    "
        "re-q: 0     timeout: 0     msgs: 0        e2e%: \n"
        "\n   [t1             ] depth: 0     be-depth: 0     msgs: 3        e2e%: \n"
        "      [ch                       ] depth: 0     be-depth: 0     inflt: 2    def: 0    "
        "re-q: 0     timeout: 0     msgs: 3        e2e%: \n"
        f"        [V2 here:{port_of(session)} test/1    ] state: 3 inflt: 2    rdy: 5    "
        "fin: 1        re-q: 0        msgs: 3        connected: _s\n"
        "\nProducers:\n"
        f"   [V2 127.0.0.1:{port_of(producer)}      ] msgs: 3        topics: t1=3 connected: _s\n"
    )


def test_many_topics_are_told_in_both_forms(fresh_nsqd: Nsqd) -> None:
    names = [f"t{number:04}" for number in range(500)]
    for name in names:
        act(fresh_nsqd, "/topic/create", topic=name)
        act(fresh_nsqd, "/channel/create", topic=name, channel="ch")
    assert [each["topic_name"] for each in get_stats(fresh_nsqd)["topics"]] == names
    assert re.findall(r"^   \[(t\d{4}) ", get_text(fresh_nsqd), re.MULTILINE) == names


def test_latencies_are_told_in_both_forms(connect: Connect, tmp_path: Path) -> None:
    flags = ["--e2e-processing-latency-percentile=0.5,1.0"]
    with Nsqd(tmp_path / "data", flags) as nsqd:
        session = connect(nsqd)
        session.subscribe("t", "c", ready=1)
        none_yet = {"quantile": 1, "value": 0}, {"quantile": 0.5, "value": 0}
        stats = get_stats(nsqd)["topics"][0]
        expected = {"count": 0, "percentiles": list(none_yet)}
        assert stats["e2e_processing_latency"] == expected
        assert stats["channels"][0]["e2e_processing_latency"] == expected
        assert get_text(nsqd).count("e2e%: 0.0ns, 0.0ns\n") == 2
        connect(nsqd).publish("t", b"x")
        message = session.message()
        session.finish(message)
        session.before_barrier()
        elapsed_ns = time.time_ns() - message.timestamp_ns
        latency = get_stats(nsqd)["topics"][0]["channels"][0]["e2e_processing_latency"]
        assert latency["count"] == 1
        assert [each["quantile"] for each in latency["percentiles"]] == [1, 0.5]
        assert 0 < latency["percentiles"][0]["value"] < 1.01 * elapsed_ns
        assert '"quantile":1,' in nsqd.http("GET", "/stats?format=json")[1].decode()
        assert len(re.findall(r"e2e%: [\d.]+(s|ms|us), [\d.]+(s|ms|us)\n", get_text(nsqd))) == 2


@pytest.mark.deviation
def test_what_a_client_says_of_itself_stays_in_its_line(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    session = connect()
    evil = "x\x1b[2J\n   [forged          ] depth: 0"
    session.request(identify({"hostname": evil, "user_agent": f"ü\r{evil}"}))
    session.request(sub(topic, "c"))
    text = get_text(nsqd, f"topic={topic}")
    assert r"[V2 x\x1b[2J\n   [forged" in text and r"ü\rx\x1b" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f]|^ *\[forged", text, re.MULTILINE)
