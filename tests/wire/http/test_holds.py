"""Holds over HTTP: made, committed, listed, deleted; seen in /stats; refused where they must be."""

import json
from urllib.parse import urlencode

import pytest

from tests.kit.daemons import ErrorFrame, Nsqd
from tests.kit.wire.admin import act, topic_stats
from tests.kit.wire.session import Connect
from tests.kit.wire.web import Answer, ask

pytestmark = pytest.mark.deviation  # NSQ has no such thing


def post(nsqd: Nsqd, path: str, **params: object) -> Answer:
    return ask(nsqd, "POST", f"{path}?{urlencode(params)}")


def holds(nsqd: Nsqd, topic: str) -> dict[str, dict[str, object]]:
    answer = ask(nsqd, "GET", f"/hold/list?{urlencode({'topic': topic})}").json()
    assert answer["topic"] == topic
    return {hold.pop("hold"): hold for hold in answer["holds"]}


@pytest.fixture
def filled(nsqd: Nsqd, connect: Connect, topic: str) -> str:
    """A topic with 20 messages."""
    connect().raw.mpub(topic, [b"%d" % number for number in range(20)])
    return topic


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        ({}, 20),
        ({"to": "end"}, 20),
        ({"to": "beginning"}, 0),
        ({"offset": 7}, 7),
        ({"time": 0}, 0),
        ({"time": "2222-01-01T00:00:00Z"}, 20),
    ],
)
def test_a_hold_begins_where_it_is_asked_to(
    nsqd: Nsqd, filled: str, place: dict[str, object], offset: int
) -> None:
    made = post(nsqd, "/hold/create", topic=filled, hold="h", **place).json()
    names = "hold offset depth bytes bytes_max dropped committed_at description".split()
    assert list(made) == names
    assert (made["hold"], made["offset"], made["depth"]) == ("h", offset, 20 - offset)
    assert (made["bytes"] > 0) == (offset < 20)
    assert (made["bytes_max"], made["dropped"]) == (10 << 30, False)


def test_creating_a_hold_that_is_there_changes_nothing(nsqd: Nsqd, filled: str) -> None:
    first = post(nsqd, "/hold/create", topic=filled, hold="h", offset=3, bytes_max=999).json()
    again = post(nsqd, "/hold/create", topic=filled, hold="h", offset=9, bytes_max=5).json()
    assert again == first
    assert (again["offset"], again["bytes_max"]) == (3, 999)


def test_a_hold_says_whose_it_is(nsqd: Nsqd, filled: str) -> None:
    post(nsqd, "/hold/create", topic=filled, hold="h", description="Spark on a machine").json()
    post(nsqd, "/hold/create", topic=filled, hold="h").json()
    assert holds(nsqd, filled)["h"]["description"] == "Spark on a machine"
    post(nsqd, "/hold/create", topic=filled, hold="h", description="of another <machine>").json()
    post(nsqd, "/hold/commit", topic=filled, hold="h", offset=20).json()
    assert holds(nsqd, filled)["h"]["description"] == "of another <machine>"
    answer = post(nsqd, "/hold/create", topic=filled, hold="i", description="x" * 501)
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_DESCRIPTION"}')
    assert "i" not in holds(nsqd, filled)


def test_commits_go_forward_only(nsqd: Nsqd, filled: str) -> None:
    post(nsqd, "/hold/create", topic=filled, hold="h", to="beginning").json()
    for offset, expected in ((5, 5), (3, 5), (20, 20), (0, 20)):
        answer = post(nsqd, "/hold/commit", topic=filled, hold="h", offset=offset).json()
        assert (answer["offset"], answer["depth"]) == (expected, 20 - expected)
    assert holds(nsqd, filled)["h"]["offset"] == 20


def test_a_deleted_hold_is_gone(nsqd: Nsqd, filled: str) -> None:
    for name in ("b", "a"):
        post(nsqd, "/hold/create", topic=filled, hold=name).json()
    assert list(holds(nsqd, filled)) == ["a", "b"]
    assert post(nsqd, "/hold/delete", topic=filled, hold="a").status == 200
    assert list(holds(nsqd, filled)) == ["b"]


def test_a_hold_is_seen_as_a_channel_without_consumers(nsqd: Nsqd, filled: str) -> None:
    post(nsqd, "/hold/create", topic=filled, hold="h", offset=4).json()
    act(nsqd, "/channel/create", topic=filled, channel="c")
    names = [channel["channel_name"] for channel in topic_stats(nsqd, filled)["channels"]]
    assert names == ["c", "h"]
    seen = nsqd.channel_stats(filled, "h")
    assert (seen["depth"], seen["client_count"], seen["clients"]) == (16, 0, [])
    assert seen["hold"] is True
    assert "hold" not in nsqd.channel_stats(filled, "c")
    only = ask(nsqd, "GET", f"/stats?format=json&topic={filled}&channel=h").json()
    assert [channel["channel_name"] for channel in only["topics"][0]["channels"]] == ["h"]


def test_a_hold_is_in_the_metrics(nsqd: Nsqd, filled: str) -> None:
    post(nsqd, "/hold/create", topic=filled, hold="h", offset=4).json()
    text = ask(nsqd, "GET", f"/metrics?topic={filled}").body.decode()
    assert f'nsqd_hold_depth{{topic="{filled}",hold="h"}} 16' in text
    assert f'nsqd_topic_dropped_holds_total{{topic="{filled}"}} 0' in text


def test_channels_and_holds_share_their_names(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    act(nsqd, "/channel/create", topic=filled, channel="c")
    refused = post(nsqd, "/hold/create", topic=filled, hold="c")
    assert (refused.status, refused.code) == (409, "CHANNEL_EXISTS")
    post(nsqd, "/hold/create", topic=filled, hold="h").json()
    refused = post(nsqd, "/channel/create", topic=filled, channel="h")
    assert (refused.status, refused.code) == (409, "HOLD_EXISTS")
    with pytest.raises(ErrorFrame, match='E_BAD_CHANNEL SUB channel name "h" is that of a hold'):
        connect().raw.sub(filled, "h")
    assert post(nsqd, "/channel/delete", topic=filled, channel="h").code == "CHANNEL_NOT_FOUND"


@pytest.mark.parametrize(
    ("verb", "query", "status", "body"),
    [
        ("create", "", 400, {"message": "MISSING_ARG_TOPIC"}),
        ("create", "topic=nobody&hold=h", 404, {"message": "TOPIC_NOT_FOUND"}),
        ("create", "topic=e%23ephemeral&hold=h", 400, {"message": "EPHEMERAL_TOPIC"}),
        ("create", "topic=held", 400, {"message": "MISSING_ARG_HOLD"}),
        ("create", "topic=held&hold=a%20b", 400, {"message": "INVALID_HOLD"}),
        ("create", "topic=held&hold=h%23ephemeral", 400, {"message": "INVALID_HOLD"}),
        ("create", "topic=held&hold=h&offset=x", 400, {"message": "INVALID_OFFSET"}),
        ("create", "topic=held&hold=h&time=x", 400, {"message": "INVALID_TIME"}),
        ("create", "topic=held&hold=h&to=middle", 400, {"message": "INVALID_PLACE"}),
        ("create", "topic=held&hold=h&to=end&offset=1", 400, {"message": "INVALID_PLACE"}),
        ("create", "topic=held&hold=h&bytes_max=-1", 400, {"message": "INVALID_OFFSET"}),
        ("create", "topic=held&hold=h&offset=1", 416, {"message": "OFFSET_BEYOND_END", "end": 0}),
        ("commit", "topic=nobody&hold=h&offset=1", 404, {"message": "TOPIC_NOT_FOUND"}),
        ("commit", "topic=held&hold=nobody&offset=0", 404, {"message": "HOLD_NOT_FOUND"}),
        ("commit", "topic=held&hold=there", 400, {"message": "MISSING_ARG_OFFSET"}),
        ("commit", "topic=held&hold=there&offset=", 400, {"message": "INVALID_OFFSET"}),
        (
            "commit",
            "topic=held&hold=there&offset=9",
            416,
            {"message": "OFFSET_BEYOND_END", "end": 0},
        ),
        ("delete", "topic=held&hold=nobody", 404, {"message": "HOLD_NOT_FOUND"}),
        ("delete", "topic=held", 400, {"message": "MISSING_ARG_HOLD"}),
    ],
)
def test_bad_requests_are_refused(
    nsqd: Nsqd, verb: str, query: str, status: int, body: dict[str, object]
) -> None:
    for name in ("held", "e#ephemeral"):
        act(nsqd, "/topic/create", topic=name)
    post(nsqd, "/hold/create", topic="held", hold="there").json()
    answer = ask(nsqd, "POST", f"/hold/{verb}?{query}")
    assert (answer.status, json.loads(answer.body)) == (status, body)


def test_a_list_of_no_holds_is_empty(nsqd: Nsqd, filled: str) -> None:
    assert holds(nsqd, filled) == {}
    assert ask(nsqd, "GET", "/hold/list?topic=nobody").status == 404


def test_holds_go_with_their_topic(nsqd: Nsqd, connect: Connect, filled: str) -> None:
    post(nsqd, "/hold/create", topic=filled, hold="h").json()
    act(nsqd, "/topic/delete", topic=filled)
    connect().raw.mpub(filled, [b"x"])
    assert holds(nsqd, filled) == {}
