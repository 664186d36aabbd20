"""Verbs that change something: on which nodes, after which question, and what they say of it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.certificates import Authority
from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.upstreams import NOT_FOUND, FakeDaemon, a_node, lookupd_of
from tests.kit.ports import HeldPort
from tests.kit.tools.verbs import Fleet, Pumpline, Said, in_shell, lose_node


def ready(nsqd: LocalNsqd, *bodies: bytes) -> None:
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    nsqd.publish("orders", *bodies)


def at_terminal(answer: str, *arguments: str) -> Said:
    """With a terminal for all three streams, at which somebody types the answer."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pumpline.tools.pumpline", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        typed = False
        while True:
            try:
                piece = terminal.read(4096)
            except OSError:  # Linux says EIO when the other side is closed
                break
            if not piece:
                break
            shown += piece
            if b"[y/N]" in shown and not typed:
                typed = True
                terminal.write(answer.encode() + b"\n")
    return Said(process.wait(), shown.decode(), "")


def test_pause_and_unpause(fleet: Fleet, pumpline: Pumpline) -> None:
    for each in (fleet.one, fleet.two):
        ready(each)
    said = pumpline("pause", "orders", "billing")
    assert [row["result"] for row in said.json()] == ["paused", "paused"]
    assert all(each.stats("orders", "billing")["paused"] for each in (fleet.one, fleet.two))
    assert pumpline("pause", "orders").code == 0
    assert fleet.one.stats("orders")["paused"]
    assert pumpline("unpause", "orders").code == pumpline("unpause", "orders", "billing").code == 0
    assert not fleet.two.stats("orders")["paused"]
    assert not fleet.two.stats("orders", "billing")["paused"]


def test_a_node_that_went_away_for_good_is_forgotten(fleet: Fleet, pumpline: Pumpline) -> None:
    lookupd = ("--lookupd", fleet.lookupd.http_address)
    said = pumpline("forget-node", "gone:4150", *lookupd)
    assert said.code == 1 and "no nsqlookupd remembers gone:4150 as lost" in said.err
    said = pumpline("forget-node", "gone:4150", "--nsqd", fleet.one.http_address)
    assert said.code == 1 and "say which nsqlookupds" in said.err
    lose_node(fleet.lookupd, "gone")
    said = pumpline("forget-node", "gone:4150", *lookupd)
    assert said.code == 0 and [row["result"] for row in said.json()] == ["forgotten"]
    assert pumpline("forget-node", "gone:4150", *lookupd).code == 1


@pytest.mark.parametrize("verb", ["pause", "unpause", "empty", "delete"])
def test_what_is_not_there_is_said(nsqd: LocalNsqd, pumpline: Pumpline, verb: str) -> None:
    ready(nsqd)
    said = pumpline(verb, "nobody")
    assert (said.code, said.out) == (1, "")
    assert said.err == f"pumpline {verb}: no nsqd has a topic nobody\n"
    assert pumpline(verb, "orders", "nobody").err == (
        f"pumpline {verb}: topic orders has no channel nobody\n"
    )


def test_only_nodes_that_have_it_are_told(fleet: Fleet, pumpline: Pumpline) -> None:
    ready(fleet.one)
    assert [row["node"] for row in pumpline("pause", "orders").json()] == [fleet.one.http_address]


def test_create(fleet: Fleet, pumpline: Pumpline) -> None:
    assert len(pumpline("create", "orders", "billing").json()) == 2
    assert fleet.two.stats("orders", "billing")["depth"] == 0
    assert b"billing" in fleet.lookupd.get("/channels?topic=orders")
    said = pumpline("create", "no such name")
    assert (said.code, said.err.count("400 INVALID_TOPIC")) == (1, 2)


def test_nothing_is_destroyed_without_a_yes(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    ready(nsqd, b"1", b"2")
    for arguments in (["empty", "orders", "billing"], ["delete", "orders"]):
        said = pumpline(*arguments)
        assert (said.code, said.out) == (1, "")
        assert "there is no terminal to ask. Say --yes." in said.err
    assert "2 waiting, 0 in flight, 0 deferred, 0 consumers, on 1 node" in (
        pumpline("empty", "orders", "billing").err
    )
    assert nsqd.depth("orders", "billing") == 2
    assert pumpline("empty", "orders", "billing", "--yes").code == 0
    assert nsqd.depth("orders", "billing") == 0


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("yes", 0), ("", 1), ("n", 1)])
def test_the_answer_at_a_terminal(nsqd: LocalNsqd, answer: str, left: int) -> None:
    ready(nsqd, b"1")
    said = at_terminal(answer, "empty", "orders", "billing")
    assert said.code == left
    assert "Drop all messages of channel billing of topic orders" in said.out
    assert ("Nothing was done" in said.out) == bool(left)
    assert nsqd.depth("orders", "billing") == left


def test_delete_reaches_nsqlookupds_and_nodes(fleet: Fleet, pumpline: Pumpline) -> None:
    for each in (fleet.one, fleet.two):
        ready(each, b"1")
    assert pumpline("delete", "orders", "billing", "--yes").code == 0
    assert fleet.one.stats("orders", "billing") == {}
    wait_until(lambda: b"billing" not in fleet.lookupd.get("/channels?topic=orders"))
    assert pumpline("delete", "orders", "--yes").code == 0
    assert fleet.two.stats("orders") == {}
    wait_until(lambda: b"orders" not in fleet.lookupd.get("/topics"))


def test_a_node_that_is_gone_is_told_and_the_others_do_it(fleet: Fleet, pumpline: Pumpline) -> None:
    for each in (fleet.one, fleet.two):
        ready(each, b"1")
    fleet.two.stop()
    gone = fleet.two.http_address
    said = pumpline(
        "delete", "orders", "--yes", f"--nsqd={fleet.one.http_address}", f"--nsqd={gone}"
    )
    assert (said.code, [row["ok"] for row in said.json()]) == (1, [True])
    assert f"nsqd {gone}: connection refused" in said.err


# -- publishing ---------------------------------------------------------------------------------


def test_messages_from_the_command_line(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    assert pumpline("pub", "orders", "one").json() == {
        "node": nsqd.http_address,
        "topic": "orders",
        "messages": 1,
    }
    assert pumpline("pub", "orders", "--", "--two", "three").json()["messages"] == 2
    bodies = [each["body"] for each in pumpline_bodies(nsqd)]
    assert bodies == ["one", "--two", "three"]


def pumpline_bodies(nsqd: LocalNsqd) -> list[dict[str, str]]:
    messages = json.loads(nsqd.get("/log/peek?topic=orders&limit=1000"))["messages"]
    return [dict(each) for each in messages]


def test_messages_from_stdin(nsqd: LocalNsqd) -> None:
    said = in_shell(r"printf 'one\r\n\ntwo\nthree' | pumpline pub orders")
    assert (said.code, said.json()["messages"]) == (0, 3)
    assert in_shell(r"printf 'a\nb\n' | pumpline pub orders --whole").code == 0
    assert [each["body"] for each in pumpline_bodies(nsqd)] == ["one", "two", "three", "a\nb\n"]
    said = in_shell("pumpline pub orders </dev/null")
    assert (said.code, "there is no message" in said.err) == (1, True)


def test_a_token_makes_a_repeat_harmless(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    for _ in range(2):
        assert pumpline("pub", "orders", "one", "--token=shop:1").code == 0
    assert len(pumpline_bodies(nsqd)) == 1
    assert pumpline("pub", "orders", "later", "--defer=1h").code == 0
    assert pumpline_bodies(nsqd)[1]["deferred_until"]
    assert pumpline("pub", "orders", "a", "b", "--defer=1h").code == 2
    assert pumpline("pub", "orders", "a", "--defer=-1h").code == 2


def test_how_many_were_published_before_it_failed(pumpline: Pumpline) -> None:
    with LocalNsqd("--max-msg-size=2000000", "--max-body-size=2000000") as nsqd:
        bodies = ["a" * 600_000, "b" * 600_000, "c" * 3_000_000]
        script = "import sys; print(*({}), sep=chr(10))".format(
            ", ".join(f"{body[0]!r} * {len(body)}" for body in bodies)
        )
        said = in_shell(
            f'"{sys.executable}" -c "{script}" | pumpline pub orders',
            PUMPLINE_NSQD=nsqd.http_address,
        )
        assert (said.code, "413 MSG_TOO_BIG: " in said.err) == (1, True)
        assert said.err.endswith(", after 2 messages\n")
        assert nsqd.stats("orders")["message_count"] == 2


def test_a_publish_goes_to_the_first_that_answers(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    closed = HeldPort()
    flags = [f"--nsqd=127.0.0.1:{closed.number}", f"--nsqd={nsqd.http_address}"]
    said = pumpline("pub", "orders", "one", *flags)
    assert (said.code, said.json()["node"]) == (0, nsqd.http_address)
    assert "connection refused" in said.err
    said = pumpline("pub", "orders", "one", flags[0])
    assert (said.code, "nothing was published" in said.err) == (1, True)


# -- seek ---------------------------------------------------------------------------------------


def test_a_seek_says_first_what_it_does(fleet: Fleet, pumpline: Pumpline) -> None:
    ready(fleet.one, b"1", b"2")
    ready(fleet.two, b"3")
    said = pumpline("seek", "orders", "billing", "--to=end", "--dry-run")
    assert (said.code, sorted(row["skipped"] for row in said.json())) == (0, [1, 2])
    assert fleet.one.depth("orders", "billing") == 2
    said = pumpline("seek", "orders", "billing", "--to=end")
    assert (said.code, said.out) == (1, "")
    assert "0 finished messages delivered again, 3 unfinished skipped?" in said.err
    assert fleet.one.depth("orders", "billing") == 2
    assert pumpline("seek", "orders", "billing", "--to=end", "--yes").code == 0
    assert fleet.one.depth("orders", "billing") == fleet.two.depth("orders", "billing") == 0
    said = pumpline("seek", "orders", "billing", "--ago=1h", "--yes", "--table")
    assert sorted(words[1:] for words in said.words) == [["0", "1"], ["0", "2"]]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ([], "say where to, by one of"),
        (["--to=end", "--ago=1h"], "say where to, by one of"),
        (["--to=middle"], "--to is beginning or end"),
        (["--time=noon"], "--time noon: neither nanoseconds nor RFC 3339"),
        (["--offset=0"], "--offset is for one node, and 2 have it"),
        (["--offset=-2"], "--offset is 0 or more"),
        (["--ago=-1h"], "--ago is a time before now"),
    ],
)
def test_a_place_that_makes_no_sense(
    fleet: Fleet, pumpline: Pumpline, place: list[str], why: str
) -> None:
    for each in (fleet.one, fleet.two):
        ready(each)
    said = pumpline("seek", "orders", "billing", *place)
    assert (said.code, said.out) == (2, "")
    assert why in said.err


# -- secured nsqds ------------------------------------------------------------------------------


def test_an_access_token_and_tls(pumpline: Pumpline, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens, reader = tmp_path / "tokens", tmp_path / "reader"
    tokens.write_text("# of the operators\nan-access-token-for-all\nonly-reading-token read\n")
    reader.write_text("only-reading-token\n")
    for each in (tokens, reader):
        each.chmod(0o600)
    identity = authority.issue("server")
    flags = [*identity.flags(), "--tls-required=true", "--https-address=127.0.0.1:0"]
    with LocalNsqd(*flags, f"--http-token-file={tokens}") as nsqd:
        # The plain port only says where the other one is.
        given = [f"--nsqd={nsqd.http_address}"]
        said = pumpline("create", "orders", *given)
        assert (said.code, "its certificate is not trusted" in said.err) == (1, True)
        given.append(f"--tls-ca-file={authority.path}")
        assert "it wants an access token: --token-file" in pumpline("create", "orders", *given).err
        said = pumpline("create", "orders", *given, f"--token-file={reader}")
        assert (said.code, "this access token may only read" in said.err) == (1, True)
        assert pumpline("create", "orders", *given, f"--token-file={tokens}").code == 0
        assert pumpline("topics", *given).json()[0]["topic"] == "orders"


def test_an_access_token_is_not_for_nsqlookupds(pumpline: Pumpline, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("an-access-token-for-all\n")
    stats = '{"version":"1.3.0","topics":[{"topic_name":"orders","channels":[]}]}'
    with (
        FakeDaemon(lambda asked: (200, stats)) as nsqd,
        FakeDaemon(lambda asked: NOT_FOUND) as lookupd,
    ):
        lookupd.answer = lookupd_of(a_node(nsqd.port, "orders"))
        said = pumpline("pause", "orders", f"--lookupd={lookupd.address}", f"--token-file={tokens}")
    assert (said.code, len(lookupd.asked) > 0) == (0, True), said.err
    assert nsqd.asked[-1].headers["authorization"] == "Bearer an-access-token-for-all"
    assert not [asked for asked in lookupd.asked if "authorization" in asked.headers]
