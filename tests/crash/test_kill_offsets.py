"""What readers by offset were told stays true, though the daemon is killed right after it."""

import json
from urllib.parse import urlencode

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import KillableNsqd, drain

SENT = [b"%d" % number for number in range(50)]


@pytest.fixture
def nsqd(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon whose topic t has 50 messages."""
    nsqd = new_nsqd("--max-bytes-per-file=1000", "--retention-bytes=0").start()
    with nsqd.connect() as client:
        for body in SENT:
            client.publish("t", body)
    return nsqd


def post(nsqd: KillableNsqd, path: str, **params: object) -> dict[str, object]:
    status, body = nsqd.http("POST", f"{path}?{urlencode(params)}")
    assert status == 200, (path, params, status, body)
    return dict(json.loads(body)) if body else {}


def holds(nsqd: KillableNsqd) -> dict[str, int]:
    status, body = nsqd.http("GET", "/hold/list?topic=t")
    assert status == 200
    return {hold["hold"]: hold["offset"] for hold in json.loads(body)["holds"]}


def kill_and_start(nsqd: KillableNsqd) -> None:
    nsqd.kill()
    nsqd.again()


def test_holds_survive_each_change_of_them(nsqd: KillableNsqd) -> None:
    post(nsqd, "/hold/create", topic="t", hold="a", offset=5)
    kill_and_start(nsqd)
    assert holds(nsqd) == {"a": 5}
    post(nsqd, "/hold/create", topic="t", hold="b", to="end")
    post(nsqd, "/hold/commit", topic="t", hold="a", offset=17)
    kill_and_start(nsqd)
    assert holds(nsqd) == {"a": 17, "b": 50}
    assert nsqd.channel_stats("t", "a")["depth"] == 33
    post(nsqd, "/hold/delete", topic="t", hold="a")
    kill_and_start(nsqd)
    assert holds(nsqd) == {"b": 50}


def test_what_is_held_is_there_after_a_kill(nsqd: KillableNsqd) -> None:
    post(nsqd, "/hold/create", topic="t", hold="a", to="beginning")
    assert len(drain(nsqd, "t", "c", len(SENT))) == len(SENT)
    kill_and_start(nsqd)
    status, body = nsqd.http("GET", "/log/raw?topic=t&from=0&to=50")
    assert status == 200
    assert all(sent in body for sent in SENT)


@pytest.mark.parametrize("place", [{"offset": 20}, {"to": "beginning"}, {"to": "end"}])
def test_a_channel_stays_where_it_was_moved(nsqd: KillableNsqd, place: dict[str, object]) -> None:
    post(nsqd, "/hold/create", topic="t", hold="keep", to="beginning")
    drain(nsqd, "t", "c", len(SENT))
    offset = post(nsqd, "/channel/seek", topic="t", channel="c", **place)["offset"]
    assert isinstance(offset, int)
    kill_and_start(nsqd)
    assert nsqd.depth("t", "c") == len(SENT) - offset
    again = drain(nsqd, "t", "c", len(SENT) - offset)
    assert [message.body for message in again] == SENT[offset:]
