"""What the page gets and does, on real nsqds: figures, tables, events, messages, changes."""

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from pumpline.sync import Consumer
from tests.kit.daemons import Nsqd, RawClient, wait_until
from tests.kit.nsqadmin.process import Nsqadmin
from tests.kit.nsqlookupd.fleet import post
from tests.nsqadmin.conftest import Fleet

HOSTILE = '<script>alert(1)</script>"&\u2028\x00'


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        post(nsqd, f"/pub?topic={topic}", body)


def consume(nsqd: Nsqd, topic: str, channel: str, **identity: Any) -> RawClient:
    client = nsqd.connect()
    client.identify({"client_id": "c", "user_agent": "test/1", **identity})
    client.send_command(f"SUB {topic} {channel}")
    assert client.read_response() == b"OK"
    return client


def row(admin: Nsqadmin, table: str, key: str) -> Any:
    rows = admin.view(f"table/{table}")["rows"]
    return next((each for each in rows if each["key"] == key), None)


# -- figures ---------------------------------------------------------------------------------------


def test_tables_are_sums_over_nodes(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    publish(fleet.nsqds[0], topic, b"a", b"b")
    publish(fleet.nsqds[1], topic, b"c")
    admin = fleet.admin
    wait_until(lambda: row(admin, f"topics?search={topic}", topic)["waiting"] == 3)
    told = row(admin, f"topics?search={topic}", topic)
    assert (told["nodes"], told["channels"], told["message_count"]) == (2, 1, 3)
    assert told["lag_ms"] >= 0
    channel = row(admin, f"channels?search={topic}", f"{topic}/ch")
    assert (channel["waiting"], channel["consumers"], channel["nodes"]) == (3, 0, 2)
    wait_until(lambda: row(admin, f"channels?search={topic}", f"{topic}/ch")["in_rate"] is not None)
    only = fleet.nsqds[1].http_address
    own = row(admin, f"topics?node={only}", topic)
    assert (own["waiting"], own["nodes"]) == (1, 1)
    own = row(admin, f"channels?node={only}&topic={topic}", f"{topic}/ch")
    assert own["waiting"] == 1


def test_what_is_wrong_is_said_in_words(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    publish(fleet.nsqd, topic, b"x")

    def troubles() -> list[Any]:
        found = fleet.admin.view(f"channel?topic={topic}&channel=ch")["troubles"]
        return [each for each in found if each["kind"] == "no_consumers"]

    (trouble,) = wait_until(troubles)
    assert trouble["severity"] == "trouble"
    assert trouble["text"].endswith("behind, no consumer")
    assert trouble["since_ms"] > 0
    rows = fleet.admin.view("table/channels?filter=trouble,no_consumers&limit=500")["rows"]
    assert f"{topic}/ch" in {each["key"] for each in rows}
    assert (
        fleet.admin.ask(
            "/api/v1/actions", {"action": "pause", "targets": [{"topic": topic, "channel": "ch"}]}
        ).status
        == 200
    )
    wait_until(lambda: not troubles())


def test_search_sort_and_pages(fleet: Fleet, topic: str) -> None:
    names = [f"{topic}.{letter}" for letter in "abcde"]
    for count, name in enumerate(names):
        post(fleet.nsqd, f"/topic/create?topic={name}")
        publish(fleet.nsqd, name, *[b"x"] * count)
    path = f"table/topics?search={topic.upper()}."
    wait_until(lambda: [r["waiting"] for r in fleet.admin.view(path)["rows"]] == [0, 1, 2, 3, 4])
    told = fleet.admin.view(f"{path}&sort=-waiting&limit=2&offset=1")
    assert (told["total"], told["offset"]) == (5, 1)
    assert [each["topic"] for each in told["rows"]] == [names[3], names[2]]
    assert fleet.admin.view(f"{path}&filter=waiting")["total"] == 4
    for query, code in (
        ("sort=nope", "INVALID_SORT"),
        ("sort=__class__", "INVALID_SORT"),
        ("filter=nope", "INVALID_FILTER"),
        ("offset=-1", "INVALID_OFFSET"),
        ("limit=x", "INVALID_LIMIT"),
    ):
        answer = fleet.admin.ask(f"/api/v1/table/topics?{query}")
        assert (answer.status, answer.message) == (400, code)


def test_rates_and_history(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    admin = fleet.admin
    wait_until(lambda: row(admin, f"topics?search={topic}", topic)["in_rate"] is not None)
    post(fleet.nsqd, f"/mpub?topic={topic}", b"\n".join([b"x"] * 20))  # no poll sees half of them
    wait_until(lambda: row(admin, f"topics?search={topic}", topic)["in_rate"])
    told = admin.view(f"history?topic={topic}&channel=ch")
    assert told["step_ms"] == 10_000
    assert told["series"]["waiting"][-1] == 20
    assert set(admin.view(f"history?topic={topic}")["series"]) == {
        "in_rate",
        "finish_rate",
        "waiting",
    }
    assert admin.view("history")["series"]["waiting"][-1] >= 20
    assert admin.view(f"history?node={fleet.nsqd.http_address}")["series"]["waiting"]
    assert admin.view("history?topic=nope")["series"] == {}


def test_one_node(fleet: Fleet) -> None:
    node = fleet.nsqd.http_address
    told = fleet.admin.view(f"node?node={node}")
    assert told["node"]["node"] == node
    assert told["node"]["pumpline"]
    assert 0 < told["node"]["disk_free"] < told["node"]["disk_total"]
    assert told["info"]["tcp_port"] == fleet.nsqd.tcp_port
    lookupd = fleet.lookupd.http_address
    assert told["registered"] == [{"lookupd": lookupd, "ok": True, "known": True}]
    answer = fleet.admin.ask("/api/v1/node?node=10.0.0.1:4151")
    assert (answer.status, answer.message) == (404, "NODE_NOT_FOUND")


def test_consumers_with_hostile_words(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    with consume(fleet.nsqd, topic, "ch", client_id=HOSTILE, user_agent=HOSTILE) as client:
        client.send_command("RDY 5")
        path = f"/api/v1/table/consumers?topic={topic}&channel=ch"
        answer = wait_until(lambda: (a := fleet.admin.ask(path)).json()["total"] == 1 and a)
        (told,) = answer.json()["rows"]
        assert (told["client_id"], told["user_agent"]) == (HOSTILE, HOSTILE)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        wait_until(lambda: fleet.admin.get(path)["rows"][0]["ready_count"] == 5)
        publish(fleet.nsqd, topic, b"x")
        client.read_message()

        def held() -> Any:
            told = fleet.admin.get(path)["rows"][0]
            return told["longest_held_offset"] == 0 and told["longest_held_ms"] >= 0

        wait_until(held)
        found = fleet.admin.get(f"{path}&search={quote('<script>')}")
        assert found["total"] == 1
        assert fleet.admin.get(f"{path}&search=nobody")["total"] == 0
        with fleet.admin.events(
            path.replace("table/consumers?", "events?view=table/consumers&")
        ) as e:
            name, data = next(e)
            assert (name, data["rows"][0]["client_id"]) == ("full", HOSTILE)


# -- events ----------------------------------------------------------------------------------------


def test_events_begin_with_everything_and_go_on_with_what_changes(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    path = f"/api/v1/events?view=table/topics&search={topic}"
    with fleet.admin.events(path) as events:
        name, told = next(events)
        assert name == "full"
        assert [each["key"] for each in told["rows"]] == [topic]
        publish(fleet.nsqd, topic, b"x")
        changed = next(data for name, data in events if "waiting" in rows_of(data).get(topic, {}))
        assert changed["rows"][topic]["waiting"] == 1
        assert "topic" not in changed["rows"][topic]
        assert changed["seq"] > told["seq"]
        assert fleet.admin.ask(f"/api/topics/{topic}", method="DELETE").status == 200
        gone = next(
            data for name, data in events if topic in rows_of(data) and data["rows"][topic] is None
        )
        assert gone["set"]["total"] == 0


def rows_of(data: Any) -> dict[str, Any]:
    return {key: value or {} for key, value in data.get("rows", {}).items()}


def test_a_topic_is_looked_at_closely(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    with fleet.admin.events(f"/api/v1/events?view=topic&topic={topic}") as events:
        name, told = next(events)
        assert (name, told["found"], len(told["nodes"])) == ("full", True, 2)
        assert told["nodes"][0]["log"]["end"] == 0
        publish(fleet.nsqd, topic, b"x")
        for _, data in events:
            total = data.get("set", {}).get("total")
            if total and total["waiting"] == 1:
                break
        assert total["log_bytes"] > 0
        fleet.admin.post("/api/v1/actions", {"action": "delete", "targets": [{"topic": topic}]})
        for _, data in events:  # what was found before is not shown for ever
            if data.get("set", {}).get("found") is False:
                break


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("view=nope", 400, "INVALID_VIEW"),
        ("view=node&node=x", 404, "NODE_NOT_FOUND"),
        ("view=table/topics&sort=x", 400, "INVALID_SORT"),
        ("view=table/topics&node=x", 404, "NODE_NOT_FOUND"),
    ],
)
def test_events_that_cannot_be(admin: Nsqadmin, query: str, status: int, code: str) -> None:
    answer = admin.ask(f"/api/v1/events?{query}")
    assert (answer.status, answer.message) == (status, code)


# -- messages --------------------------------------------------------------------------------------


def test_messages_of_all_nodes_by_time(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    for number in range(6):
        publish(fleet.nsqds[number % 2], topic, b"m%d" % number)
    path = f"messages?topic={topic}&limit=4"
    first = fleet.admin.view(path)
    assert [each["body"] for each in first["messages"]] == ["m0", "m1", "m2", "m3"]
    second = fleet.admin.view(f"{path}&next={quote(first['next'])}")
    assert [each["body"] for each in second["messages"]] == ["m4", "m5"]
    assert second["next"] == ""
    newest = fleet.admin.view(f"{path}&newest=true")
    assert [each["body"] for each in newest["messages"]] == ["m5", "m4", "m3", "m2"]
    rest = fleet.admin.view(f"{path}&newest=true&next={quote(newest['next'])}")
    assert [each["body"] for each in rest["messages"]] == ["m1", "m0"]
    assert rest["next"] == ""
    found = fleet.admin.view(f"{path}&contains=m3")
    assert [each["body"] for each in found["messages"]] == ["m3"]
    time_ms = int(first["messages"][2]["timestamp_ms"])
    later = fleet.admin.view(f"{path}&time_ms={time_ms}")
    assert later["messages"][0]["body"] in ("m1", "m2")
    waiting = fleet.admin.view(f"{path}&channel=ch&state=waiting")
    assert {each["state"] for each in waiting["messages"]} == {"waiting"}


def test_bodies_are_never_markup(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    text, raw = HOSTILE.encode(), b"\xff\xfe<b>" + b"x" * 5000
    publish(fleet.nsqd, topic, text, raw)
    node = fleet.nsqd.http_address
    answer = fleet.admin.ask(f"/api/v1/messages?topic={topic}&node={node}")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    one, two = answer.json()["messages"]
    assert (one["body"], one["truncated"]) == (HOSTILE, False)
    assert base64.b64decode(two["body_base64"]) == raw[:4096]
    assert (two["truncated"], two["bytes"]) == (True, len(raw))
    path = f"/api/v1/body?topic={topic}&node={node}&offset=1"
    body = fleet.admin.ask(path)
    assert body.body == raw
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"] == f'attachment; filename="{topic}-1.bin"'
    assert body.headers["x-content-type-options"] == "nosniff"


def test_where_a_message_stands(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "done", "held", "new")
    node = fleet.nsqd.http_address
    post(fleet.nsqd, f"/hold/create?topic={topic}&hold=spark&to=beginning")
    publish(fleet.nsqd, topic, b"x")
    with consume(fleet.nsqd, topic, "held") as held, consume(fleet.nsqd, topic, "done") as done:
        for client in (held, done):
            client.send_command("RDY 1")
        done.send_command(f"FIN {done.read_message().id}")
        held.read_message()
        path = f"message?topic={topic}&node={node}&offset=0"

        def states() -> dict[str, str]:
            told = fleet.admin.view(path)["channels"]
            return {each["channel"]: each["state"] for each in told}

        expected = {"done": "finished", "held": "in_flight", "new": "waiting", "spark": "hold"}
        wait_until(lambda: states() == expected)
        assert fleet.admin.view(path)["message"]["body"] == "x"
        post(fleet.nsqd, f"/hold/commit?topic={topic}&hold=spark&offset=1")
        assert states()["spark"] == "passed"
    answer = fleet.admin.ask(f"/api/v1/message?topic={topic}&node={node}&offset=9")
    assert (answer.status, answer.message) == (404, "MESSAGE_NOT_FOUND")


def test_the_tail_of_all_nodes(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    with fleet.admin.events(f"/api/v1/tail?topic={topic}&contains=m") as events:
        nodes = {next(events)[1]["node"] for _ in range(2)}
        assert nodes == {nsqd.http_address for nsqd in fleet.nsqds}
        publish(fleet.nsqds[0], topic, b"m0", b"other")
        publish(fleet.nsqds[1], topic, b"m1")
        told = [next(events) for _ in range(2)]
        assert {(name, data["node"], data["body"]) for name, data in told} == {
            ("message", fleet.nsqds[0].http_address, "m0"),
            ("message", fleet.nsqds[1].http_address, "m1"),
        }


# -- changes ---------------------------------------------------------------------------------------


def test_many_rows_at_once_and_one_node_alone(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "a", "b")
    targets = [{"topic": topic, "channel": name} for name in "ab"]
    told = fleet.admin.post("/api/v1/actions", {"action": "pause", "targets": targets})
    assert (told["ok"], told["failed"], told["message"]) == (4, 0, "")
    assert [len(each["nodes"]) for each in told["results"]] == [2, 2]
    only = fleet.nsqds[1].http_address
    told = fleet.admin.post(
        "/api/v1/actions", {"action": "unpause", "targets": targets[:1], "node": only}
    )
    assert told["results"][0]["nodes"] == [{"node": only, "ok": True, "error": ""}]
    assert [nsqd.channel_stats(topic, "a")["paused"] for nsqd in fleet.nsqds] == [True, False]
    told = fleet.admin.post(
        "/api/v1/actions",
        {"action": "pause", "targets": [*targets, {"topic": topic, "channel": "nope"}]},
    )
    assert (told["ok"], told["failed"]) == (4, 2)
    said = "404 CHANNEL_NOT_FOUND: the topic has no such channel"
    assert {each["error"] for each in told["results"][2]["nodes"]} == {said}
    answer = fleet.admin.ask(
        "/api/v1/actions", {"action": "pause", "targets": [{"topic": topic, "channel": "nope"}]}
    )
    assert (answer.status, answer.json()["failed"]) == (502, 2)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"action": "explode", "targets": [{"topic": "t"}]}, 400, "INVALID_ACTION"),
        ({"action": "pause", "targets": []}, 400, "INVALID_TARGETS"),
        ({"action": "pause", "targets": [{"topic": "t"}] * 1001}, 400, "INVALID_TARGETS"),
        ({"action": "pause", "targets": [{"topic": "<b>"}]}, 400, "INVALID_TOPIC"),
        ({"action": "pause", "targets": [{"topic": "t", "channel": "?"}]}, 400, "INVALID_CHANNEL"),
        ({"action": "tombstone", "targets": [{"topic": "t"}]}, 400, "NODE_REQUIRED"),
        ({"action": "delete_hold", "targets": [{"topic": "t"}]}, 400, "INVALID_TARGETS"),
        (
            {"action": "pause", "targets": [{"topic": "t"}], "node": "10.0.0.1:1"},
            404,
            "NODE_NOT_FOUND",
        ),
    ],
)
def test_actions_that_cannot_be(admin: Nsqadmin, body: object, status: int, code: str) -> None:
    answer = admin.ask("/api/v1/actions", body)
    assert (answer.status, answer.message) == (status, code)


def test_a_rewind_says_first_what_it_would_do(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    nsqd = fleet.nsqd
    publish(nsqd, topic, b"a", b"b", b"c")
    asked = {"topic": topic, "channel": "ch", "to": "end"}
    told = fleet.admin.post("/api/v1/rewind", {**asked, "dry_run": True})
    assert (told["skipped"], told["again"], told["ok"], told["failed"]) == (3, 0, 2, 0)
    assert nsqd.channel_stats(topic, "ch")["depth"] == 3
    told = fleet.admin.post("/api/v1/rewind", asked)
    assert (told["depth"], "again" in told) == (0, False)
    assert nsqd.channel_stats(topic, "ch")["depth"] == 0
    back = {"topic": topic, "channel": "ch", "offset": 1}
    answer = fleet.admin.ask("/api/v1/rewind", back)
    assert (answer.status, answer.message) == (400, "NODE_REQUIRED")
    told = fleet.admin.post("/api/v1/rewind", {**back, "node": nsqd.http_address, "dry_run": True})
    assert told["again"] == 2
    fleet.admin.post("/api/v1/rewind", {**back, "node": nsqd.http_address})
    assert nsqd.channel_stats(topic, "ch")["depth"] == 2
    told = fleet.admin.post("/api/v1/rewind", {"topic": topic, "channel": "ch", "time_ms": 0})
    assert told["depth"] == 3
    for place in ({}, {"to": "x"}, {"offset": -1}, {"offset": 1, "to": "end"}):
        answer = fleet.admin.ask("/api/v1/rewind", {"topic": topic, "channel": "ch", **place})
        assert (answer.status, answer.message) == (400, "INVALID_PLACE")


def test_a_dead_letter_of_a_consumer_has_its_reason(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    publish(fleet.nsqd, topic, b'"seven"')
    path = f"dead-letters?topic={topic}"
    with Consumer(topic, "ch", nsqd=fleet.nsqd.tcp_address, type=int):
        wait_until(lambda: fleet.admin.view(path)["total"] == 1)
    [letter] = fleet.admin.view(path)["letters"]
    assert (letter["reason"], letter["body"]) == ("Expected `int`, got `str`", '"seven"')


def test_dead_letters_are_seen_and_published_again_once(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    nsqd = fleet.nsqd
    settings = {"topic": topic, "settings": {"max_attempts": 1}}
    assert fleet.admin.post("/api/v1/settings", settings)["ok"] == 2
    publish(nsqd, topic, HOSTILE.encode(), b"two")
    with consume(nsqd, topic, "ch") as client:
        client.send_command("RDY 2")
        for _ in range(2):
            client.send_command(f"REQ {client.read_message().id} 0")
        path = f"dead-letters?topic={topic}"
        wait_until(lambda: fleet.admin.view(path)["total"] == 2)
    told = fleet.admin.view(path)
    assert {each["body"] for each in told["letters"]} == {HOSTILE, "two"}
    letter = told["letters"][0]
    assert (letter["channel"], letter["attempts"], letter["reason"]) == ("ch", 1, "")
    assert told["boxes"][0]["dead_letter_topic"] == f"{topic}.dlq"
    assert fleet.admin.view(f"{path}&channel=ch")["letters"] == told["letters"]
    assert fleet.admin.view(f"{path}&channel=other")["letters"] == []
    other = {"topic": topic, "all": True, "channel": "other"}
    assert fleet.admin.post("/api/v1/dead-letters", other)["published"] == 0
    page = fleet.admin.view(f"{path}&limit=1")
    rest = fleet.admin.view(f"{path}&limit=1&next={quote(page['next'])}")
    assert page["letters"] + rest["letters"] == told["letters"]
    assert rest["next"] == ""
    place = {"node": letter["node"], "letter_offset": letter["letter_offset"]}
    for body in ({"letters": [place]}, {"letters": [place]}, {"all": True}, {"all": True}):
        fleet.admin.post("/api/v1/dead-letters", {"topic": topic, **body})
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 4  # two, and each once again
    for body in ({}, {"all": True, "letters": [place]}):
        answer = fleet.admin.ask("/api/v1/dead-letters", {"topic": topic, **body})
        assert (answer.status, answer.message) == (400, "INVALID_LETTERS")


def test_settings_and_retention(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    publish(fleet.nsqd, topic, b"x")
    change = {"topic": topic, "settings": {"retention_time": "1h", "max_depth": 9}}
    fleet.admin.post("/api/v1/settings", change)
    only = {**change, "settings": {"max_depth": 10}, "node": fleet.nsqds[1].http_address}
    assert fleet.admin.post("/api/v1/settings", only)["ok"] == 1
    told = fleet.admin.view(f"settings?topic={topic}")
    assert told["settings"]["retention_time"] == "1h0m0s"
    assert told["differ"] == ["max_depth"]
    own = {each["node"]: each for each in told["nodes"]}[fleet.nsqd.http_address]["retention"]
    assert (own["time"], own["messages"], own["kept_by"]) == ("1h0m0s", 1, ["ch"])
    assert own["deletes_at_ms"] == own["first_timestamp_ms"] + 3_600_000
    assert own["bytes"] == 256 << 20
    answer = fleet.admin.ask("/api/v1/settings", {"topic": topic, "settings": {"nope": 1}})
    assert (answer.status, answer.message) == (400, "INVALID_SETTINGS")
    assert "nope" in answer.json()["detail"]


def test_holds(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    publish(fleet.nsqd, topic, b"x")
    whose = "description=Spark+on+a+machine"
    post(fleet.nsqd, f"/hold/create?topic={topic}&hold=spark&to=beginning&{whose}")

    def own(path: str) -> list[Any]:
        return [each for each in fleet.admin.view(path)["holds"] if each["topic"] == topic]

    for path in (f"holds?topic={topic}", "holds"):
        (hold,) = wait_until(lambda path=path: own(path))
        assert (hold["hold"], hold["depth"], hold["dropped"]) == ("spark", 1, False)
        assert hold["bytes"] > 0
        assert hold["description"] == "Spark on a machine"
    target = {"topic": topic, "hold": "spark"}
    node = fleet.nsqd.http_address
    told = fleet.admin.post(
        "/api/v1/actions", {"action": "delete_hold", "targets": [target], "node": node}
    )
    assert told["ok"] == 1
    assert fleet.admin.view(f"holds?topic={topic}")["holds"] == []


def test_data_is_compressed_for_who_takes_it(fleet: Fleet) -> None:
    for number in range(20):
        publish(fleet.nsqd, f"compressed{number}", b"x")
    admin, path = fleet.admin, "table/topics?search=compressed"
    wait_until(lambda: admin.view(path)["total"] == 20)
    plain = admin.ask(f"/api/v1/{path}")
    packed = admin.ask(f"/api/v1/{path}", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    assert json.loads(plain.body)["total"] == 20
