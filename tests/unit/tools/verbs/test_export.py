"""`pumpline export` and `pumpline import`: a cluster gets the topics, channels, settings and pauses
of another one."""

import json
from pathlib import Path

import pytest

from pumpline.sync import Consumer
from pumpline.testing import LocalNsqd
from tests.kit.tools.verbs import Fleet, Pumpline, in_shell


def fill(nsqd: LocalNsqd) -> None:
    for path in (
        "/topic/create?topic=orders",
        "/channel/create?topic=orders&channel=billing",
        "/channel/create?topic=orders&channel=mail",
        "/channel/pause?topic=orders&channel=mail",
        "/topic/create?topic=held",
        "/topic/pause?topic=held",
        "/topic/create?topic=gone%23ephemeral",
        "/hold/create?topic=orders&hold=spark",
    ):
        nsqd.post(path)
    nsqd.post("/topic/settings?topic=orders", b'{"message_ttl":"90s","max_attempts":5}')


LAYOUT = {
    "version": 1,
    "topics": [
        {"topic": "held", "paused": True, "settings": {}, "channels": []},
        {
            "topic": "orders",
            "paused": False,
            "settings": {"message_ttl": "1m30s", "max_attempts": 5},
            "channels": [
                {"channel": "billing", "paused": False},
                {"channel": "mail", "paused": True},
            ],
        },
    ],
}


def test_another_nsqd_becomes_the_same(tmp_path: Path, pumpline: Pumpline) -> None:
    with LocalNsqd() as one, LocalNsqd() as two:
        fill(one)
        exported = pumpline("export", "--nsqd", one.http_address)
        assert exported.json() == LAYOUT
        path = tmp_path / "cluster.json"
        path.write_text(exported.out)
        said = pumpline("import", str(path), "--nsqd", two.http_address, "--yes")
        assert said.code == 0, said
        assert all(row["ok"] for row in said.json())
        assert pumpline("export", "--nsqd", two.http_address).json() == LAYOUT
        again = pumpline("import", str(path), "--nsqd", two.http_address)  # there is no question
        assert (again.code, again.json(), again.err) == (0, [], "nothing to change\n")


def test_the_difference_is_shown_first_and_nothing_is_done_without_a_yes(
    nsqd: LocalNsqd, tmp_path: Path, pumpline: Pumpline
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(LAYOUT))
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/topic/settings?topic=orders", b'{"message_ttl":"1h","max_depth":9}')
    before = pumpline("export").out
    shown = [
        "create topic held",
        "pause topic held",
        "settings of topic orders: message_ttl 1h0m0s -> 1m30s, max_attempts none -> 5, "
        "max_depth 9 -> none",
        "create channel billing of topic orders",
        "create channel mail of topic orders",
        "pause channel mail of topic orders",
    ]
    for flags in ([], ["--dry-run"]):
        said = pumpline("import", str(path), *flags)
        lines = [f"{nsqd.http_address}: {each}" for each in shown]
        assert said.err.splitlines()[:6] == lines
        assert said.code == (0 if flags else 1)
    assert [row["change"] for row in said.json()] == shown
    assert pumpline("export").out == before


def test_what_the_document_does_not_have_stays(
    nsqd: LocalNsqd, tmp_path: Path, pumpline: Pumpline
) -> None:
    fill(nsqd)
    nsqd.post("/channel/create?topic=orders&channel=other")
    nsqd.post("/topic/create?topic=more")
    nsqd.post("/channel/pause?topic=orders&channel=billing")
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(LAYOUT))
    said = pumpline("import", str(path), "--yes")
    assert [row["change"] for row in said.json()] == ["unpause channel billing of topic orders"]
    topics = {each["topic"]: each for each in pumpline("export").json()["topics"]}
    assert list(topics) == ["held", "more", "orders"]
    assert len(topics["orders"]["channels"]) == 3


def test_messages_and_consumers_are_left_alone(
    nsqd: LocalNsqd, tmp_path: Path, pumpline: Pumpline
) -> None:
    fill(nsqd)
    path = tmp_path / "cluster.json"
    path.write_text(pumpline("export").out)
    nsqd.publish("orders", b"one")
    with Consumer("orders", "billing", nsqd=nsqd.tcp_address) as consumer:
        message = next(iter(consumer))
        assert pumpline("import", str(path), "--yes").code == 0
        message.finish()
    nsqd.wait_until_done("orders", "billing", 60.0)


def test_all_nodes_get_it_and_nodes_that_differ_are_named(
    fleet: Fleet, tmp_path: Path, pumpline: Pumpline
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(LAYOUT))
    assert pumpline("import", str(path), "--yes").code == 0
    assert pumpline("export").json() == LAYOUT
    fleet.two.post("/channel/unpause?topic=orders&channel=mail")
    said = pumpline("export")
    assert (said.code, said.out) == (1, "")
    assert "channel orders/mail is not the same on" in said.err
    assert fleet.one.http_address in said.err and fleet.two.http_address in said.err


def test_one_command_copies_from_one_nsqd_to_another() -> None:
    with LocalNsqd() as one, LocalNsqd() as two:
        fill(one)
        said = in_shell(
            f"pumpline export --nsqd {one.http_address}"
            f" | pumpline import - --nsqd {two.http_address} --yes"
        )
        assert said.code == 0, said
        assert two.stats("orders", "mail")["paused"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", "no document of `pumpline export`"),
        ("{", "no document of `pumpline export`"),
        ('{"version": 2}', "version 2 is not known, only 1"),
        ('{"version": 1, "topics": [{"topic": "a b"}]}', "'a b' is no name of a topic"),
        (
            '{"version": 1, "topics": [{"topic": "a"}, {"topic": "a"}]}',
            "topic a is there twice",
        ),
        (
            '{"version": 1, "topics": [{"topic": "a", "settings": {"max_depth": 0}}]}',
            "topic a: max_depth must be",
        ),
        (
            '{"version": 1, "topics": [{"topic": "a", "settings": {"when_full": "reject"}}]}',
            "topic a: when_full needs",
        ),
        (
            '{"version": 1, "topics": [{"topic": "ok"}, {"topic": "a", "channel": []}]}',
            "unknown field `channel`",
        ),
    ],
)
def test_a_document_that_makes_no_sense_changes_nothing(
    nsqd: LocalNsqd, tmp_path: Path, pumpline: Pumpline, document: str, said: str
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(document)
    answer = pumpline("import", str(path), "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err
    assert pumpline("export").json()["topics"] == []


def test_a_file_that_is_not_there_is_named(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    said = pumpline("import", "/nowhere/cluster.json")
    assert said.code == 1
    assert "/nowhere/cluster.json" in said.err
