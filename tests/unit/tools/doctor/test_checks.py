"""Each check of the doctor: what it finds, at which limit, and that it is quiet otherwise."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pumpline.cluster.health import Level
from pumpline.cluster.stats import SeenNode
from pumpline.tools.doctor.checks import CHECKS, findings_of
from pumpline.tools.doctor.evidence import Evidence, SeenLookupd, SeenProcess


def process(address: str = "a:4151", **more: Any) -> SeenProcess:
    well: dict[str, Any] = {"version": "1.3.0", "broadcast": "a:4150", "clock_ahead_s": 0.0}
    return SeenProcess(address=address, **{**well, "stats": stats(), **more})


def stats(health: str = "OK", *topics: dict[str, Any]) -> SeenNode:
    return msgspec.convert({"version": "1.3.0", "health": health, "topics": topics}, SeenNode)


def topic(name: str = "orders", *channels: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"topic_name": name, "channels": channels, **more}


def channel(**more: Any) -> dict[str, Any]:
    return {"channel_name": "billing", **more}


def hold(**more: Any) -> dict[str, Any]:
    well = {"depth": 1, "bytes": 10, "bytes_max": 100, "committed_seconds": 1.0, "dropped": False}
    return {"topic": "orders", "hold": "spark", "node": "a:4151", **well, **more}


def lookupd(*nodes: str, **more: Any) -> SeenLookupd:
    return SeenLookupd(address="l:4161", **{"version": "1.3.0", "nodes": list(nodes), **more})


def found(evidence: Evidence) -> list[tuple[str, str, str]]:
    return [(each.level.name, each.check, each.subject) for each in findings_of(evidence)]


WELL = Evidence(processes=[process()], lookupds=[lookupd("a:4151")])


def test_nothing_is_wrong_with_what_is_well() -> None:
    assert found(WELL) == []


@pytest.mark.parametrize(
    ("more", "level", "check"),
    [
        ({"stats": stats("NOK - disk full")}, "CRITICAL", "health"),
        ({"metrics": {"nsqd_write_failures_total": 1.0}}, "WARNING", "health"),
        ({"metrics": {"nsqd_fsync_failures_total": 2.0}}, "WARNING", "health"),
        ({"unreachable": "connection refused"}, "CRITICAL", "broadcast"),
        ({"lost_lookupds": ["l:4160"]}, "WARNING", "discovery"),
        ({"clock_ahead_s": 2.0}, "WARNING", "clocks"),
        ({"clock_ahead_s": -31.0}, "CRITICAL", "clocks"),
        ({"clock_ahead_s": 1.9}, "", ""),
        ({"clock_ahead_s": None}, "", ""),
        ({"stats": stats("OK", topic("t", channel(depth=1)))}, "WARNING", "consumers"),
        ({"stats": stats("OK", topic("t", channel(deferred_count=1)))}, "WARNING", "consumers"),
        ({"stats": stats("OK", topic("t", channel(depth=1, client_count=1)))}, "", ""),
        ({"stats": stats("OK", topic("t", channel(depth=1, hold=True)))}, "", ""),
        ({"stats": stats("OK", topic("t", channel()))}, "", ""),
        ({"stats": stats("OK", topic("t", depth=1))}, "WARNING", "consumers"),
        ({"stats": stats("OK", topic("t", paused=True))}, "WARNING", "paused"),
        ({"stats": stats("OK", topic("t", channel(paused=True)))}, "WARNING", "paused"),
        ({"holds": [hold()]}, "", ""),
        ({"holds": [hold(bytes=51)]}, "WARNING", "holds"),
        ({"holds": [hold(bytes=51, bytes_max=0)]}, "", ""),
        ({"holds": [hold(dropped=True)]}, "CRITICAL", "holds"),
        ({"holds": [hold(committed_seconds=90_000.0)]}, "WARNING", "holds"),
        ({"holds": [hold(committed_seconds=90_000.0, depth=0)]}, "", ""),
        ({"metrics": {"nsqd_disk_free_ratio": 0.2}}, "", ""),
        ({"metrics": {"nsqd_disk_free_ratio": 0.1}}, "WARNING", "disk"),
        ({"metrics": {"nsqd_disk_free_ratio": 0.04}}, "CRITICAL", "disk"),
        ({"metrics": {"process_open_fds": 79.0, "process_max_fds": 100.0}}, "", ""),
        (
            {"metrics": {"process_open_fds": 80.0, "process_max_fds": 100.0}},
            "WARNING",
            "descriptors",
        ),
        (
            {"metrics": {"process_open_fds": 99.0, "process_max_fds": 100.0}},
            "CRITICAL",
            "descriptors",
        ),
        ({"metrics": {"process_open_fds": 99.0}}, "", ""),
    ],
)
def test_checks_of_a_node(more: dict[str, Any], level: str, check: str) -> None:
    seen = found(replace(WELL, processes=[process(**more)]))
    assert [each[:2] for each in seen] == ([(level, check)] if level else [])


def test_those_that_do_not_answer() -> None:
    evidence = Evidence(node_failures={"a:1": "refused"}, lookupd_failures={"l:1": "refused"})
    assert found(evidence) == [
        ("CRITICAL", "answers", "nsqlookupd l:1"),
        ("CRITICAL", "answers", "a:1"),
    ]
    assert found(Evidence()) == [("CRITICAL", "answers", "cluster")]


def test_an_nsqlookupd_that_does_not_know_a_node() -> None:
    both = [process("a:4151"), process("b:4151")]
    evidence = Evidence(processes=both, lookupds=[lookupd("a:4151"), lookupd("a:4151", "b:4151")])
    assert found(evidence) == [("CRITICAL", "discovery", "b:4151")]


def test_versions_that_differ() -> None:
    nodes = [process("a:1"), process("b:1", version="1.2.0")]
    evidence = Evidence(processes=nodes, lookupds=[lookupd("a:1", "b:1")])
    assert found(evidence) == [("WARNING", "versions", "b:1")]


@pytest.mark.parametrize(("mode", "count"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_the_rights_of_the_token_file(mode: int, count: int) -> None:
    evidence = replace(WELL, token_file="tokens", token_file_mode=mode)
    assert [each.check for each in findings_of(evidence)] == ["token-file"] * count


def test_the_worst_comes_first() -> None:
    worst = process(clock_ahead_s=2.5, metrics={"nsqd_disk_free_ratio": 0.01})
    levels = [each.level for each in findings_of(Evidence(processes=[worst]))]
    assert levels == [Level.CRITICAL, Level.WARNING]
    assert len(CHECKS) == 12
