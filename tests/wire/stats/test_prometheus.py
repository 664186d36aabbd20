"""/metrics: the figures of /stats and more, read with Prometheus' own parsers."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act, await_channel
from tests.kit.wire.commands import identify, pub, req
from tests.kit.wire.session import Connect
from tests.kit.wire.web import ask

pytestmark = pytest.mark.deviation

Rows = dict[tuple[str, frozenset[tuple[str, str]]], float]

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


def rows(families: Iterable[object]) -> Rows:
    found: Rows = {}
    for family in families:
        for sample in family.samples:  # type: ignore[attr-defined]
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def scrape(nsqd: Nsqd, query: str = "") -> Rows:
    answer = ask(nsqd, "GET", f"/metrics{query}")
    assert (answer.status, answer.headers["Content-Type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return rows(parse_plain(answer.body.decode()))


def figures(found: Rows, **labels: str) -> dict[str, float]:
    """Those with exactly these labels, by name."""
    wanted = frozenset(labels.items())
    return {name: value for (name, has), value in found.items() if has == wanted}


def test_topics_and_channels_have_the_figures_of_stats(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer = connect()
    consumer.subscribe(topic, "ch", ready=2)
    connect().publish(topic, b"one", b"two", b"three", b"four")
    first, _ = consumer.messages(2)
    consumer.send(req(first.id, 60_000))
    consumer.message()
    consumer.before_barrier()
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    assert ask(nsqd, "GET", f"/log/peek?topic={topic}").status == 200  # all is in the file
    found = scrape(nsqd)
    stats = nsqd.stats(topic)["topics"][0]
    channel = stats["channels"][0]
    assert channel["deferred_count"] == 1
    assert (
        figures(found, topic=topic).items()
        >= {
            "nsqd_topic_depth": stats["depth"],
            "nsqd_topic_backend_depth": stats["backend_depth"],
            "nsqd_topic_messages_total": 4,
            "nsqd_topic_message_bytes_total": 15,
            "nsqd_topic_paused": 0,
            "nsqd_topic_log_bytes": log_bytes(nsqd, topic),
            "nsqd_topic_log_segments": 1,
            "nsqd_topic_log_first_offset": 0,
            "nsqd_topic_log_end_offset": 4,
        }.items()
    )
    assert (
        figures(found, topic=topic, channel="ch").items()
        >= {
            "nsqd_channel_depth": 1,
            "nsqd_channel_backend_depth": channel["backend_depth"],
            "nsqd_channel_in_flight": 2,
            "nsqd_channel_deferred": 1,
            "nsqd_channel_messages_total": 4,
            "nsqd_channel_requeues_total": 1,
            "nsqd_channel_timeouts_total": 0,
            "nsqd_channel_consumers": 1,
            "nsqd_channel_paused": 1,
            "nsqd_channel_dropped_messages_total": 0,
        }.items()
    )


def log_bytes(nsqd: Nsqd, topic: str) -> int:
    segments = Path(nsqd.data_path, "topics", topic).glob("*.log")
    return sum(each.stat().st_size for each in segments)


def test_openmetrics_has_the_same_series(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connect().publish(topic, b"x")
    scrape(nsqd)  # from now on it counts replies
    answer = ask(nsqd, "GET", "/metrics?include_clients=true", headers=OPENMETRICS)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    found = rows(parse_openmetrics(answer.body.decode()))
    assert found.keys() == scrape(nsqd, "?include_clients=true").keys()


def test_the_daemon_tells_of_itself(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connect().publish(topic, b"x")
    found = scrape(nsqd)
    plain = figures(found)
    assert plain["nsqd_healthy"] == 1
    assert plain["nsqd_start_time_seconds"] == nsqd.stats()["start_time"]
    assert plain["nsqd_topics"] == len(nsqd.stats()["topics"])
    assert plain["nsqd_connections"] >= plain["nsqd_producers"] >= 1
    assert 0 <= plain["nsqd_checkpoint_age_seconds"] < 60
    assert 0 < plain["nsqd_disk_free_ratio"] < 1
    assert 0 < plain["nsqd_disk_free_bytes"] < plain["nsqd_disk_bytes"]
    assert plain["nsqd_log_files_open"] >= 1
    assert plain["process_cpu_seconds_total"] > 0
    [build] = [dict(has) for name, has in found if name == "nsqd_build_info"]
    assert build["version"] == "1.3.0"
    assert build["kernels"] in ("compiled", "python")
    assert build["event_loop"] in ("uvloop", "asyncio")


def test_syncs_and_loop_delays_are_counted(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--sync-every=1"]) as nsqd:
        with nsqd.connect() as client:
            client.publish("t", b"x")
        assert figures(scrape(nsqd))["nsqd_fsync_seconds_count"] >= 1
        wait_until(lambda: figures(scrape(nsqd))["nsqd_event_loop_delay_seconds_count"] > 0)


def test_a_bound_that_is_hit_is_counted(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--max-connections=1", "--mem-queue-size=2"]) as nsqd:
        with nsqd.connect() as client:
            client.sub("t#ephemeral", "c#ephemeral")
            client.mpub("t#ephemeral", [b"1", b"2", b"3"])
            with nsqd.connect() as refused, pytest.raises((EOFError, ConnectionError)):
                refused.publish("t", b"x")
            found = scrape(nsqd)
            assert figures(found)["nsqd_refused_connections_total"] == 1
            dropped = figures(found, topic="t#ephemeral")["nsqd_topic_dropped_messages_total"]
            assert dropped == 1
            client.send_command("PUB !", b"x")
            wait_until(lambda: figures(scrape(nsqd), code="E_BAD_TOPIC"))
        assert figures(scrape(nsqd), status="200")["nsqd_http_replies_total"] >= 2


def test_what_settings_refuse_or_let_go_is_counted(nsqd: Nsqd, topic: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="ch")
    body = json.dumps({"max_depth": 2}).encode()
    assert ask(nsqd, "POST", f"/topic/settings?topic={topic}", body).status == 200
    for status in (200, 200, 503):
        assert ask(nsqd, "POST", f"/pub?topic={topic}", b"x").status == status
    found = scrape(nsqd, f"?topic={topic}")
    assert figures(found, topic=topic)["nsqd_topic_refused_messages_total"] == 1
    assert figures(found, topic=topic)["nsqd_topic_overflow_messages_total"] == 0
    shown = figures(found, topic=topic, channel="ch")
    for name in ("overflow_messages", "expired_messages", "dead_letters"):
        assert shown[f"nsqd_channel_{name}_total"] == 0


def test_clients_are_left_out_unless_asked_for(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer = connect()
    consumer.request(identify({"client_id": 'a "client"\\\n', "user_agent": "me/1"}))
    consumer.subscribe(topic, "ch", ready=5)
    consumer.request(pub(topic, b"x"))
    assert not [name for name, _ in scrape(nsqd) if name.startswith("nsqd_client_")]
    await_channel(nsqd, topic, "ch", in_flight_count=1)
    found = scrape(nsqd, f"?include_clients=true&topic={topic}")
    port = consumer.raw.socket.getsockname()[1]
    who = {"client_id": 'a "client"\\\n', "remote_address": f"127.0.0.1:{port}"}
    shown = figures(found, topic=topic, channel="ch", user_agent="me/1", **who)
    assert shown.pop("nsqd_client_connected_seconds") > 0
    assert shown == {
        "nsqd_client_state": 3,
        "nsqd_client_ready": 5,
        "nsqd_client_in_flight": 1,
        "nsqd_client_messages_total": 1,
        "nsqd_client_finishes_total": 0,
        "nsqd_client_requeues_total": 0,
    }
    assert figures(found, topic=topic, **who) == {"nsqd_client_published_messages_total": 1}


def test_some_topics_and_channels_can_be_asked_for(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        connect().subscribe(name, "a")
        connect().subscribe(name, "b")
    found = scrape(nsqd, f"?topic={topic}&channel=a")
    assert {dict(has)["topic"] for _, has in found if "topic" in dict(has)} == {topic}
    assert {dict(has)["channel"] for _, has in found if "channel" in dict(has)} == {"a"}


def test_a_topic_that_does_not_exist_has_no_series(nsqd: Nsqd) -> None:
    found = scrape(nsqd, "?topic=nowhere")
    assert not [name for name, _ in found if re.match("nsqd_(topic|channel)_", name)]
    assert figures(found)["nsqd_healthy"] == 1
