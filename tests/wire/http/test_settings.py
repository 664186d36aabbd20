"""A topic's settings over HTTP, and what they do to real clients."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemons import ErrorFrame, Nsqd, wait_until
from tests.kit.wire.web import Answer, ask

pytestmark = pytest.mark.deviation

ABSENT = {
    "retention_time": None,
    "retention_bytes": None,
    "message_ttl": None,
    "max_attempts": None,
    "dead_letter_topic": None,
    "dead_letter_form": None,
    "max_depth": None,
    "max_bytes": None,
    "when_full": None,
}


def change(nsqd: Nsqd, topic: str, changes: object) -> Answer:
    body = changes if isinstance(changes, bytes) else json.dumps(changes).encode()
    return ask(nsqd, "POST", f"/topic/settings?topic={topic}", body)


def created(nsqd: Nsqd, topic: str, **settings: object) -> str:
    assert ask(nsqd, "POST", f"/topic/create?topic={topic}").status == 200
    assert ask(nsqd, "POST", f"/channel/create?topic={topic}&channel=c").status == 200
    assert change(nsqd, topic, settings).status == 200
    return topic


def shown(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    return dict(ask(nsqd, "GET", f"/topic/settings?topic={topic}").json())


def fault(answer: Answer) -> tuple[int, str, str]:
    decoded = json.loads(answer.body)
    return answer.status, decoded["message"], decoded.get("detail", "")


def test_new_topic_has_none(nsqd: Nsqd, topic: str) -> None:
    assert shown(nsqd, created(nsqd, topic)) == {
        "topic": topic,
        "settings": ABSENT,
        "refused": 0,
        "dropped": 0,
        "channels": {"c": {"expired": 0, "dead_letters": 0, "dropped": 0}},
    }


def test_changes_are_answered_with_the_whole(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, message_ttl="90s", max_depth=7)
    answer = change(nsqd, topic, {"max_depth": None, "retention_bytes": 1}).json()
    assert answer["settings"] == {**ABSENT, "message_ttl": "1m30s", "retention_bytes": 1}
    assert answer == shown(nsqd, topic)


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b'"x"', b"\xff", b'{"max_depth":1', b"[" * 10_000, b"{}x"],
)
def test_body_must_be_an_object(nsqd: Nsqd, topic: str, body: bytes) -> None:
    created(nsqd, topic)
    status, code, detail = fault(change(nsqd, topic, body))
    assert (status, code) == (400, "INVALID_SETTINGS")
    assert detail.startswith("the body must be a JSON object")


def test_what_is_wrong_is_said_and_nothing_changes(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, max_depth=7)
    for changes, text in [
        ({"max_depth": 8, "nonsense": 1}, "there is no setting 'nonsense'"),
        ({"max_depth": 8, "message_ttl": "soon"}, "message_ttl must be a duration"),
        ({"max_depth": None, "when_full": "reject"}, "when_full needs max_depth or max_bytes"),
    ]:
        status, code, detail = fault(change(nsqd, topic, changes))
        assert (status, code) == (400, "INVALID_SETTINGS")
        assert detail.startswith(text)
    assert shown(nsqd, topic)["settings"] == {**ABSENT, "max_depth": 7}


def test_topics_that_cannot_have_any(nsqd: Nsqd) -> None:
    assert ask(nsqd, "POST", "/topic/create?topic=brief%23ephemeral").status == 200
    for method in ("GET", "POST"):
        body = b"{}" if method == "POST" else None
        for query, expected in [
            ("", (400, "MISSING_ARG_TOPIC")),
            ("?topic=a%20b", (400, "INVALID_TOPIC")),
            ("?topic=nowhere", (404, "TOPIC_NOT_FOUND")),
            ("?topic=brief%23ephemeral", (400, "EPHEMERAL_TOPIC")),
        ]:
            answer = ask(nsqd, method, f"/topic/settings{query}", body)
            assert (answer.status, answer.code) == expected
    assert change(nsqd, "t", b"x" * 20_000).code == "BODY_TOO_BIG"


def test_dead_letters_have_no_dead_letters(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, max_attempts=1, dead_letter_topic=f"{topic}-dead")
    created(nsqd, f"{topic}-dead")
    created(nsqd, f"{topic}-other")
    refused = fault(change(nsqd, f"{topic}-dead", {"max_attempts": 1}))
    assert refused[2] == f"max_attempts cannot be: {topic}-dead has the dead letters of {topic}"
    chain = {"max_attempts": 1, "dead_letter_topic": topic}
    refused = fault(change(nsqd, f"{topic}-other", chain))
    assert refused[2] == f"{topic} cannot take dead letters: it has max_attempts"


@pytest.mark.parametrize("kill", [False, True])
def test_settings_survive(tmp_path: Path, kill: bool) -> None:
    settings = {
        "retention_time": "1h0m0s",
        "message_ttl": "2h0m0s",
        "max_attempts": 5,
        "max_depth": 10,
        "when_full": "drop-oldest",
    }
    with Nsqd(tmp_path / "data") as nsqd:
        created(nsqd, "t", **settings)
        if kill:
            nsqd.kill()
        nsqd.restart()
        assert shown(nsqd, "t")["settings"] == {**ABSENT, **settings}
        ask(nsqd, "POST", "/topic/pause?topic=t")  # writes the manifest for another reason
        nsqd.restart()
        assert shown(nsqd, "t")["settings"] == {**ABSENT, **settings}


# -- what they do -----------------------------------------------------------------------------


def test_full_backlog_refuses_publishers(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, max_depth=2)
    with nsqd.connect() as client:
        client.mpub(topic, [b"a", b"b"])
        with pytest.raises(ErrorFrame) as raised:
            client.publish(topic, b"c")
        assert str(raised.value) == "E_PUB_FAILED PUB failed backlog full: max_depth of 2 reached"
    with nsqd.connect() as client:
        with pytest.raises(ErrorFrame) as raised:
            client.mpub(topic, [b"c", b"d"])
        assert str(raised.value).startswith("E_MPUB_FAILED MPUB failed backlog full: max_depth")
    answer = ask(nsqd, "POST", f"/pub?topic={topic}", b"c")
    assert fault(answer) == (503, "BACKLOG_FULL", "backlog full: max_depth of 2 reached")
    assert shown(nsqd, topic)["refused"] == 4
    assert nsqd.channel_stats(topic, "c")["depth"] == 2


def test_full_backlog_drops_the_oldest(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, max_depth=2, when_full="drop-oldest")
    with nsqd.connect() as client:
        client.mpub(topic, [b"a", b"b", b"c"])
        client.sub(topic, "c")
        client.rdy(5)
        assert [client.read_message().body for _ in range(2)] == [b"b", b"c"]
    assert shown(nsqd, topic)["channels"]["c"]["dropped"] == 1


def test_old_messages_are_passed_over(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, message_ttl="1ms")
    with nsqd.connect() as client:
        client.mpub(topic, [b"a", b"b"])
        wait_until(lambda: nsqd.stats(topic)["topics"][0]["message_count"] == 2)
        client.sub(topic, "c")
        client.rdy(5)
        wait_until(lambda: shown(nsqd, topic)["channels"]["c"]["expired"] == 2)
    assert nsqd.channel_stats(topic, "c")["depth"] == 0


def test_message_that_nobody_can_handle_ends_among_the_dead_letters(nsqd: Nsqd, topic: str) -> None:
    created(nsqd, topic, max_attempts=3)
    with nsqd.connect() as client, nsqd.connect() as mourner:
        mourner.sub(f"{topic}.dlq", "look")
        mourner.rdy(1)
        client.publish(topic, b"bad")
        client.sub(topic, "c")
        client.rdy(1)
        for attempt in (1, 2, 3):
            message = client.read_message()
            assert (message.attempts, message.body) == (attempt, b"bad")
            client.req(message.id)
        letter = mourner.read_message()
        assert json.loads(letter.body) == {
            "topic": topic,
            "channel": "c",
            "id": message.id,
            "offset": 0,
            "attempts": 3,
            "timestamp": message.timestamp_ns,
            "body": "bad",
        }
    assert shown(nsqd, topic)["channels"]["c"]["dead_letters"] == 1
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 3)
