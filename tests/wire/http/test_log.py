"""Reading by offset over HTTP: where a log begins and ends, and ranges of it as in the files."""

import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from tests.kit.daemons import Nsqd
from tests.kit.logs import batches_in
from tests.kit.wire.admin import act
from tests.kit.wire.session import Connect
from tests.kit.wire.web import JSON_TYPE, Answer, ask, ask_on, open_connection

pytestmark = pytest.mark.deviation  # NSQ has no such thing

NSQD_FLAGS = ["--max-bytes-per-file=2000", "--retention-bytes=0", "--retention-time=0"]


def get(nsqd: Nsqd, path: str, **params: object) -> Answer:
    return ask(nsqd, "GET", f"{path}?{urlencode(params)}")


def offsets(nsqd: Nsqd, topic: str, **params: object) -> dict[str, Any]:
    return dict(get(nsqd, "/log/offsets", topic=topic, **params).json())


def publish(nsqd: Nsqd, connect: Connect, topic: str, count: int) -> list[bytes]:
    bodies = [b"body %d" % number for number in range(count)]
    session = connect(nsqd)
    for at in range(0, count, 10):
        session.raw.mpub(topic, bodies[at : at + 10])
    return bodies


def publish_batches(nsqd: Nsqd, connect: Connect, topic: str, count: int) -> list[bytes]:
    """As `publish`, each ten messages in a batch of their own, in a file."""
    bodies = [b"body %d" % number for number in range(count)]
    session = connect(nsqd)
    for at in range(0, count, 10):
        session.raw.mpub(topic, bodies[at : at + 10])
        flush(nsqd, topic)
    return bodies


def flush(nsqd: Nsqd, topic: str) -> None:
    """Whoever looks into a log finds all of it in the files."""
    assert get(nsqd, "/log/peek", topic=topic).status == 200


def messages(batches: list[LogBatch]) -> dict[int, bytes]:
    return {
        offset: bytes(batch.cut(offset, offset + 1))[MESSAGE_OVERHEAD_BYTES:]
        for batch in batches
        for offset in range(batch.first, batch.end)
    }


def test_offsets_of_a_new_topic(nsqd: Nsqd, topic: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    found = offsets(nsqd, topic)
    assert list(found) == (
        "node topic log first end bytes ordered_from segments gaps first_timestamp "
        "timestamp started".split()
    )
    assert [found[name] for name in ("topic", "first", "end", "bytes")] == [topic, 0, 0, 0]
    assert str(found["node"]).endswith(f":{nsqd.tcp_port}")
    assert len(str(found["log"])) == 16


def test_offsets_follow_what_is_published(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    before_ns = time.time_ns()
    publish_batches(nsqd, connect, topic, 100)
    found = offsets(nsqd, topic)
    assert (found["first"], found["end"]) == (0, 100)
    assert before_ns <= int(str(found["first_timestamp"])) <= int(str(found["timestamp"]))
    assert int(str(found["segments"])) > 1
    assert int(str(found["bytes"])) > 100 * MESSAGE_OVERHEAD_BYTES


def test_offsets_of_all_durable_topics(nsqd: Nsqd, topic: str) -> None:
    for name in (topic + "b", topic + "a", topic + "c#ephemeral"):
        act(nsqd, "/topic/create", topic=name)
    found = get(nsqd, "/log/offsets").json()
    assert list(found) == ["node", "timestamp", "topics"]
    names = [entry["topic"] for entry in found["topics"]]
    assert names == sorted(names)
    assert {topic + "a", topic + "b"} <= set(names)
    assert topic + "c#ephemeral" not in names


def test_a_time_leads_to_an_offset(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    publish(nsqd, connect, topic, 20)
    middle_ns = time.time_ns()
    publish(nsqd, connect, topic, 20)
    assert offsets(nsqd, topic, time=0)["offset"] == 0
    assert offsets(nsqd, topic, time=middle_ns)["offset"] == 20
    assert offsets(nsqd, topic, time="1970-01-01T00:00:00Z")["offset"] == 0
    assert offsets(nsqd, topic, time="2200-01-01T02:00:00+02:00")["offset"] == 40


def test_a_time_leads_into_a_batch_of_many_publishes(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    """All that comes within a tenth of a second may be one batch."""
    session = connect(nsqd)
    for number in range(50):
        name = f"{topic}-{number}"
        session.publish(name, *[b"before"] * 10)
        middle_ns = time.time_ns()
        session.publish(name, *[b"after"] * 10)
        assert offsets(nsqd, name, time=middle_ns)["offset"] == 10
        raw = get(nsqd, "/log/raw", **{"topic": name, "from": 0, "to": 20})
        if any(batch.first < 10 < batch.end for batch in batches_in(raw.body)):
            return
    raise AssertionError("no batch has both: the test tested nothing")


def test_a_range_has_the_messages_asked_for(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = publish_batches(nsqd, connect, topic, 100)
    answer = get(nsqd, "/log/raw", **{"topic": topic, "from": 15, "to": 77})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == str(len(answer.body))
    assert answer.headers["X-Pumpline-Log"] == offsets(nsqd, topic)["log"]
    assert answer.headers["X-Pumpline-From"] == "15"
    assert answer.headers["X-Pumpline-To"] == "77"
    assert messages(batches_in(answer.body)) == {o: bodies[o] for o in range(10, 80)}


def test_a_range_beyond_the_end_is_cut_there(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = publish(nsqd, connect, topic, 30)
    answer = get(nsqd, "/log/raw", **{"topic": topic, "from": 0, "to": 1 << 40})
    assert answer.headers["X-Pumpline-To"] == "30"
    assert messages(batches_in(answer.body)) == dict(enumerate(bodies))


def test_ranges_of_limited_size_follow_on_each_other(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    bodies = publish_batches(nsqd, connect, topic, 100)
    connection = open_connection(nsqd)
    found: dict[int, bytes] = {}
    at = requests = 0
    while at < 100:
        query = urlencode({"topic": topic, "from": at, "to": 100, "bytes_max": 1000})
        answer = ask_on(connection, "GET", f"/log/raw?{query}")
        assert answer.status == 200
        assert len(answer.body) <= 1000
        found.update(messages(batches_in(answer.body)))
        at = int(answer.headers["X-Pumpline-To"])
        requests += 1
    connection.close()
    assert found == dict(enumerate(bodies))
    assert requests > 3


def test_an_empty_range_has_an_empty_answer(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    publish(nsqd, connect, topic, 10)
    answer = get(nsqd, "/log/raw", **{"topic": topic, "from": 10, "to": 10})
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["X-Pumpline-To"] == "10"


def test_a_log_that_was_replaced_is_noticed(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    publish(nsqd, connect, topic, 10)
    old = offsets(nsqd, topic)["log"]
    ranged = {"topic": topic, "from": 0, "to": 10, "log": old}
    assert get(nsqd, "/log/raw", **ranged).status == 200
    act(nsqd, "/topic/delete", topic=topic)
    publish(nsqd, connect, topic, 10)
    new = offsets(nsqd, topic)["log"]
    answer = get(nsqd, "/log/raw", **ranged)
    assert (answer.status, json.loads(answer.body)) == (409, {"message": "LOG_CHANGED", "log": new})


def test_what_is_retired_is_gone_for_every_reader(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer = connect(nsqd)
    consumer.subscribe(topic, "ch", ready=100)
    publish_batches(nsqd, connect, topic, 100)
    consumer.finish(*consumer.messages(100))
    assert consumer.before_barrier() == []
    nsqd.drop_history(topic)
    later = publish(nsqd, connect, topic, 10)
    first = int(str(offsets(nsqd, topic)["first"]))
    assert 0 < first <= 100
    gone = (410, {"message": "OFFSET_GONE", "first": first})
    place = {"topic": topic, "from": first - 1}
    for path in ("/log/raw", "/log/peek", "/log/tail"):
        answer = get(nsqd, path, **place, to=100)
        assert (answer.status, json.loads(answer.body)) == gone, path
    query = urlencode({"topic": topic, "hold": "h", "offset": first - 1})
    answer = ask(nsqd, "POST", f"/hold/create?{query}")
    assert (answer.status, json.loads(answer.body)) == gone
    rest = get(nsqd, "/log/raw", **{"topic": topic, "from": 100, "to": 110})
    assert messages(batches_in(rest.body)) == dict(enumerate(later, 100))


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        ("", 400, {"message": "MISSING_ARG_TOPIC"}),
        ("topic=a%20b", 400, {"message": "INVALID_TOPIC"}),
        ("topic=nobody", 404, {"message": "TOPIC_NOT_FOUND"}),
        ("topic=reading%23ephemeral", 400, {"message": "EPHEMERAL_TOPIC"}),
        ("topic=reading", 400, {"message": "MISSING_ARG_FROM"}),
        ("topic=reading&from=0", 400, {"message": "MISSING_ARG_TO"}),
        ("topic=reading&from=-1&to=1", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=a&to=1", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=0&to=%D9%A1", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=0&to=99999999999999999999", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=2&to=1", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=0&to=1&bytes_max=x", 400, {"message": "INVALID_OFFSET"}),
        ("topic=reading&from=6&to=7", 416, {"message": "OFFSET_BEYOND_END", "end": 5}),
    ],
)
def test_bad_ranges_are_refused(
    nsqd: Nsqd, connect: Connect, query: str, status: int, body: dict[str, object]
) -> None:
    if not nsqd.stats("reading")["topics"]:
        act(nsqd, "/topic/create", topic="reading#ephemeral")
        publish(nsqd, connect, "reading", 5)
    answer = ask(nsqd, "GET", f"/log/raw?{query}")
    assert (answer.status, json.loads(answer.body)) == (status, body)
    assert answer.headers["Content-Type"] == JSON_TYPE


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("topic=", 400, "INVALID_TOPIC"),
        ("topic=nobody", 404, "TOPIC_NOT_FOUND"),
        ("topic=times%23ephemeral", 400, "EPHEMERAL_TOPIC"),
        ("topic=times&time=", 400, "INVALID_TIME"),
        ("topic=times&time=yesterday", 400, "INVALID_TIME"),
        ("topic=times&time=2026-02-30T00:00:00Z", 400, "INVALID_TIME"),
        ("topic=times&time=2026-02-20T00:00:00", 400, "INVALID_TIME"),
        ("topic=times&time=-5", 400, "INVALID_TIME"),
    ],
)
def test_bad_questions_about_offsets_are_refused(
    nsqd: Nsqd, query: str, status: int, code: str
) -> None:
    for name in ("times", "times#ephemeral"):
        act(nsqd, "/topic/create", topic=name)
    answer = ask(nsqd, "GET", f"/log/offsets?{query}")
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/log/offsets", {"time": None}),
        ("/log/raw", {"from": 0, "to": 100}),
        ("/log/peek", {}),
        ("/log/peek", {"newest": "true", "limit": 1000}),
    ],
)
def test_a_file_that_is_missing_is_an_error_and_no_more(
    nsqd: Nsqd, connect: Connect, topic: str, path: str, params: dict[str, object]
) -> None:
    publish_batches(nsqd, connect, topic, 100)
    if "time" in params:
        params = {"time": offsets(nsqd, topic)["first_timestamp"] + 1}
    (nsqd.data_path / "topics" / topic / f"{0:020}.log").unlink()
    answer = get(nsqd, path, topic=topic, **params)
    assert (answer.status, answer.code) == (503, "READ_FAILED")


def test_reading_creates_no_topic(nsqd: Nsqd, topic: str) -> None:
    assert get(nsqd, "/log/offsets", topic=topic).status == 404
    assert get(nsqd, "/log/raw", **{"topic": topic, "from": 0, "to": 1}).status == 404
    assert nsqd.stats(topic)["topics"] in (None, [])


def test_what_was_acknowledged_can_be_read_with_group_commit(
    own_nsqd: Nsqd, connect: Connect
) -> None:
    own_nsqd.flags = ["--sync-every=1"]
    own_nsqd.start()
    bodies = publish(own_nsqd, connect, "t", 100)
    assert offsets(own_nsqd, "t")["end"] == 100
    answer = get(own_nsqd, "/log/raw", **{"topic": "t", "from": 0, "to": 100})
    assert messages(batches_in(answer.body)) == dict(enumerate(bodies))
