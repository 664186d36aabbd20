"""`pumpline topics`, `channels`, `holds`, `settings`: what is shown, also when a node fails."""

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.daemons import wait_until
from tests.kit.ports import HeldPort
from tests.kit.tools.verbs import Fleet, Pumpline, in_shell


def test_topics_are_summed_over_nodes(fleet: Fleet, pumpline: Pumpline) -> None:
    fleet.one.publish("orders", b"1", b"22")
    fleet.two.publish("orders", b"333")
    fleet.two.publish("mail", b"x")
    fleet.two.post("/channel/create?topic=mail&channel=send")
    said = pumpline("topics")
    assert said.code == 0
    assert [(row["topic"], len(row["nodes"])) for row in said.json()] == [
        ("mail", 1),
        ("orders", 2),
    ]
    orders = said.json()[1]
    assert {key: orders[key] for key in ("channels", "depth", "messages", "bytes", "paused")} == {
        "channels": 0,
        "depth": 3,
        "messages": 3,
        "bytes": 6,
        "paused": False,
    }
    assert [row["topic"] for row in pumpline("topics", "m*").json()] == ["mail"]
    rows = pumpline("topics", "--by-node", "orders").json()
    assert sorted((*row["nodes"], row["messages"]) for row in rows) == sorted(
        [(fleet.one.http_address, 2), (fleet.two.http_address, 1)]
    )


def test_channels_have_their_lag_in_time(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    assert pumpline("channels", "orders").json()[0]["lag_seconds"] is None
    nsqd.publish("orders", b"1")
    wait_until(lambda: pumpline("channels", "orders").json()[0]["lag_seconds"] >= 0.01)
    (row,) = pumpline("channels").json()
    assert (row["topic"], row["channel"], row["depth"], row["consumers"]) == (
        "orders",
        "billing",
        1,
        0,
    )
    assert pumpline("channels", "nobody").code == 1


def test_a_table_has_a_row_for_each(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    name = "a" * 64
    nsqd.publish(name, b"1")
    nsqd.post(f"/channel/create?topic={name}&channel={name}")
    said = pumpline("channels", "--table")
    assert said.out.split()[:4] == ["topic", "channel", "nodes", "depth"]
    # Wider than 80 columns, and not cut, since this is no terminal.
    assert said.words[0][:4] == [name, name, "1", "1"]


def test_holds_show_what_they_pin(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b"1", b"2")
    assert pumpline("holds").json() == []
    nsqd.post("/hold/create?topic=orders&hold=archive&to=beginning&description=Spark+on+a+machine")
    (row,) = pumpline("holds").json()
    assert (row["topic"], row["hold"], row["depth"], row["dropped"]) == (
        "orders",
        "archive",
        2,
        False,
    )
    assert row["bytes"] > 0
    assert pumpline("holds", "orders").json()[0]["hold"] == "archive"
    assert "no nsqd has a topic nobody" in pumpline("holds", "nobody").err
    table = pumpline("holds", "--table").out
    assert "orders  archive" in table and "Spark on a machine" in table
    nsqd.post("/channel/create?topic=orders&channel=billing")
    assert pumpline("channels", "orders", "--names").out == "billing\n"
    assert pumpline("topics", "--names").out == "orders\n"
    said = pumpline("holds", "delete", "orders", "archive")
    assert (said.code, "--yes" in said.err) == (1, True)
    assert pumpline("holds", "delete", "orders", "archive", "--yes").code == 0
    assert pumpline("holds").json() == []
    assert pumpline("holds", "delete", "orders", "archive", "--yes").code == 1


def test_settings_are_shown_and_changed_on_every_node(fleet: Fleet, pumpline: Pumpline) -> None:
    for each in (fleet.one, fleet.two):
        each.publish("orders", b"1")
    said = pumpline("settings", "orders", "message_ttl=24h", "max_attempts=5")
    assert [row["settings"]["message_ttl"] for row in said.json()] == ["24h0m0s"] * 2
    said = pumpline("settings", "orders", "message_ttl=", "--table")
    assert ["message_ttl", "-", "-"] in said.words
    assert ["max_attempts", "5", "5"] in said.words
    for wrong, why in (
        ("message_ttl", "write <setting>=<value>"),
        ("ttl=1h", "there is no setting 'ttl'"),
        ("max_attempts=many", "max_attempts must be a whole number"),
    ):
        said = pumpline("settings", "orders", wrong)
        assert (said.code, why in said.err) == (2, True)
    said = pumpline("settings", "orders", "when_full=reject")
    assert (said.code, said.err.count("INVALID_SETTINGS: when_full needs max_depth")) == (1, 2)


def test_a_node_that_fails_is_told_and_the_others_answer(
    nsqd: LocalNsqd, pumpline: Pumpline
) -> None:
    nsqd.publish("orders", b"1")
    closed = HeldPort()
    said = pumpline("topics", f"--nsqd=127.0.0.1:{closed.number}", "--nsqd", nsqd.http_address)
    assert said.code == 1
    assert [row["topic"] for row in said.json()] == ["orders"]
    assert said.err == f"nsqd 127.0.0.1:{closed.number}: connection refused\n"


def test_a_node_named_twice_is_one(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b"1")
    flag = f"--nsqd={nsqd.http_address}"
    assert len(pumpline("pause", "orders", flag, flag).json()) == 1
    assert pumpline("topics", flag, flag).json()[0]["messages"] == 1


def test_an_nsqlookupd_that_fails_is_told(fleet: Fleet, pumpline: Pumpline) -> None:
    closed = HeldPort()
    addresses = [f"127.0.0.1:{closed.number}", fleet.lookupd.http_address]
    said = pumpline("topics", *(f"--lookupd={each}" for each in addresses))
    assert (said.code, said.json()) == (1, [])
    assert said.err.startswith(f"nsqlookupd 127.0.0.1:{closed.number}: ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["topics", "--nsqd=here"], "'here' is no address: expected <host>:<port>"),
        (["topics", "--nsqd=a:1", "--lookupd=b:2"], "use --nsqd or --lookupd, not both"),
        (["topics", "--token-file=/nowhere"], "--token-file /nowhere: No such file"),
        (["topics", "--tls-ca-file=/nowhere"], "--tls-ca-file /nowhere: No such file"),
        (["topics", "--tls-cert=x"], "--tls-cert and --tls-key must be given together"),
        (["topics", "--jsno"], "flag provided but not defined: -jsno: did you mean --json?"),
        (["topics", "a", "b"], "too many arguments: b"),
        (["pause"], "<topic> is missing"),
        (["seek", "orders"], "<channel> is missing"),
    ],
)
def test_a_command_line_that_makes_no_sense(
    pumpline: Pumpline, arguments: list[str], why: str
) -> None:
    said = pumpline(*arguments)
    assert (said.code, said.out) == (2, "")
    assert f"pumpline {arguments[0]}: {why}" in said.err


def test_a_reader_that_goes_away_ends_it_quietly(nsqd: LocalNsqd) -> None:
    for index in range(300):
        nsqd.post(f"/topic/create?topic=topic-{index}")
    said = in_shell("pumpline topics | head -n 1; echo ${PIPESTATUS[0]}")
    assert (said.out.splitlines()[-1], said.err) == ("0", "")
