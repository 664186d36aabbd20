"""POST /channel/seek: a channel goes on from another place while its consumers stay connected."""

import json
import time
from urllib.parse import urlencode

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act
from tests.kit.wire.commands import fin, rdy
from tests.kit.wire.session import FRAME_ERROR, Connect, Frame, bodies
from tests.kit.wire.web import Answer, ask

pytestmark = pytest.mark.deviation  # NSQ has no such thing

NSQD_FLAGS = ["--max-bytes-per-file=500", "--retention-bytes=0"]
SENT = [b"%d" % number for number in range(20)]


def seek(nsqd: Nsqd, topic: str, channel: str = "ch", **place: object) -> Answer:
    query = urlencode({"topic": topic, "channel": channel, **place})
    return ask(nsqd, "POST", f"/channel/seek?{query}")


def hold_everything(nsqd: Nsqd, topic: str) -> None:
    query = urlencode({"topic": topic, "hold": "keep", "to": "beginning"})
    assert ask(nsqd, "POST", f"/hold/create?{query}").status == 200


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        ({"offset": 12}, 12),
        ({"offset": 20}, 20),
        ({"to": "beginning"}, 0),
        ({"to": "end"}, 20),
        ({"time": 0}, 0),
        ({"time": "2222-02-22T22:22:22Z"}, 20),
    ],
)
def test_a_channel_is_moved(
    nsqd: Nsqd, connect: Connect, topic: str, place: dict[str, object], offset: int
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=100)
    hold_everything(nsqd, topic)
    producer.publish(topic, *SENT)
    for message in consumer.messages(20):
        consumer.send(fin(message.id))
    assert consumer.before_barrier() == []
    answer = seek(nsqd, topic, **place).json()
    assert (answer["offset"], answer["clamped"]) == (offset, False)
    assert bodies(consumer.messages(20 - offset)) == SENT[offset:]
    assert consumer.before_barrier() == []


def test_a_channel_is_moved_to_a_time(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=100)
    producer.publish(topic, *SENT[:10])
    middle_ns = time.time_ns()
    producer.publish(topic, *SENT[10:])
    consumer.messages(20)
    assert seek(nsqd, topic, time=middle_ns).json()["offset"] == 10
    assert bodies(consumer.messages(10)) == SENT[10:]


def test_what_was_in_flight_is_not_any_more(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=5)
    producer.publish(topic, *SENT)
    late = consumer.messages(5)[0]
    assert seek(nsqd, topic, to="end").json() == {"offset": 20, "clamped": False, "depth": 0}
    consumer.send(fin(late.id))
    refused = f"E_FIN_FAILED FIN {late.id} failed ID not in flight".encode()
    assert consumer.frame() == Frame(FRAME_ERROR, refused)
    producer.publish(topic, b"new")
    assert consumer.message().body == b"new"


@pytest.mark.parametrize(
    ("place", "effect"),
    [  # of 20: 0 to 4 and 8 are finished, 5 to 7 and 9 are in flight, the others wait
        ({"to": "beginning"}, {"offset": 0, "depth": 20, "again": 6, "skipped": 0}),
        ({"offset": 3}, {"offset": 3, "depth": 17, "again": 3, "skipped": 0}),
        ({"offset": 6}, {"offset": 6, "depth": 14, "again": 1, "skipped": 1}),
        ({"offset": 15}, {"offset": 15, "depth": 5, "again": 0, "skipped": 9}),
        ({"to": "end"}, {"offset": 20, "depth": 0, "again": 0, "skipped": 14}),
    ],
)
def test_a_dry_run_counts_and_moves_nothing(
    nsqd: Nsqd, connect: Connect, topic: str, place: dict[str, object], effect: dict[str, int]
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    producer.publish(topic, *SENT)
    sent = consumer.messages(10)
    consumer.send(rdy(0))
    for index in (0, 1, 2, 3, 4, 8):
        consumer.send(fin(sent[index].id))
    assert consumer.before_barrier() == []
    before = ask(nsqd, "GET", f"/log/peek?topic={topic}&channel=ch").json()
    for _ in range(2):
        answer = seek(nsqd, topic, **place, dry_run="true").json()
        assert answer == {**effect, "clamped": False, "in_flight": 4, "dry_run": True}
    assert ask(nsqd, "GET", f"/log/peek?topic={topic}&channel=ch").json() == before
    consumer.send(fin(sent[5].id))
    assert consumer.before_barrier() == []


def test_what_is_gone_cannot_come_back(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=100)
    for body in SENT:
        producer.publish(topic, body)
        assert ask(nsqd, "GET", f"/log/peek?topic={topic}").status == 200  # each in a batch
    for message in consumer.messages(20):
        consumer.send(fin(message.id))
    assert consumer.before_barrier() == []

    nsqd.drop_history(topic)
    oldest = int(ask(nsqd, "GET", f"/log/offsets?topic={topic}").json()["first"])
    assert oldest > 0
    answer = seek(nsqd, topic, offset=0).json()
    assert answer == {"offset": oldest, "clamped": True, "depth": 20 - oldest}
    assert bodies(consumer.messages(20 - oldest)) == SENT[oldest:]


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        ("", 400, {"message": "MISSING_ARG_TOPIC"}),
        ("topic=moving", 400, {"message": "MISSING_ARG_CHANNEL"}),
        ("topic=a%20b&channel=c", 400, {"message": "INVALID_ARG_TOPIC"}),
        ("topic=nobody&channel=c&to=end", 404, {"message": "TOPIC_NOT_FOUND"}),
        ("topic=moving&channel=nobody&to=end", 404, {"message": "CHANNEL_NOT_FOUND"}),
        ("topic=e%23ephemeral&channel=c&to=end", 400, {"message": "EPHEMERAL_TOPIC"}),
        ("topic=moving&channel=c", 400, {"message": "MISSING_PLACE"}),
        ("topic=moving&channel=c&to=", 400, {"message": "MISSING_PLACE"}),
        ("topic=moving&channel=c&to=start", 400, {"message": "INVALID_PLACE"}),
        ("topic=moving&channel=c&to=end&offset=0", 400, {"message": "INVALID_PLACE"}),
        ("topic=moving&channel=c&offset=-1", 400, {"message": "INVALID_OFFSET"}),
        ("topic=moving&channel=c&time=noon", 400, {"message": "INVALID_TIME"}),
        ("topic=moving&channel=c&to=end&dry_run=maybe", 400, {"message": "INVALID_DRY_RUN"}),
        ("topic=moving&channel=c&dry_run=true", 400, {"message": "MISSING_PLACE"}),
        ("topic=moving&channel=c&offset=1", 416, {"message": "OFFSET_BEYOND_END", "end": 0}),
    ],
)
def test_bad_requests_are_refused(
    nsqd: Nsqd, query: str, status: int, body: dict[str, object]
) -> None:
    for name in ("moving", "e#ephemeral"):
        act(nsqd, "/topic/create", topic=name)
        act(nsqd, "/channel/create", topic=name, channel="c")
    answer = ask(nsqd, "POST", f"/channel/seek?{query}")
    assert (answer.status, json.loads(answer.body)) == (status, body)
