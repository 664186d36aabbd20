"""`pumpline top` as a person uses it, at a terminal and in a script."""

import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

from pumpline.cluster.client import ClusterClient
from pumpline.testing import LocalNsqd
from pumpline.tools.top.command import Poller, TopOptions
from pumpline.tools.verbs.output import Output
from pumpline.tools.verbs.verb import Call
from tests.kit.daemons import wait_until
from tests.kit.ports import HeldPort
from tests.kit.tools.verbs import Fleet, Pumpline

FAST = "--interval=100ms"
SIGNALS = {"ctrl-c": signal.SIGINT, "terminate": signal.SIGTERM}
GIVEN_BACK = b"\x1b[?1049l"  # the screen, to the shell


def test_once_as_json(fleet: Fleet, pumpline: Pumpline) -> None:
    for each in (fleet.one, fleet.two):
        each.publish("orders", b"1", b"2")
        each.post("/channel/create?topic=orders&channel=billing")
        wait_until(lambda each=each: each.depth("orders", "billing") == 2)  # type: ignore[misc]
    said = pumpline("top", "--once", "--json", FAST)
    answer = said.json()
    assert (said.code, answer["failures"]) == (0, {})
    assert len(answer["nodes"]) == 2
    assert (answer["topics"][0]["messages"], answer["topics"][0]["in"]) == (4, 0.0)
    (row,) = answer["channels"]
    assert (row["depth"], row["out"], row["state"]) == (4, 0.0, "no consumers")
    assert row["lag_seconds"] > 0


def test_once_as_a_table(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    for topic in ("orders", "mail"):
        nsqd.publish(topic, b"1")
    given = ("--once", "--table", "--view=topics", FAST)
    assert [words[0] for words in pumpline("top", *given).words] == ["mail", "orders"]
    assert [words[0] for words in pumpline("top", *given, "--filter=ord").words] == ["orders"]
    assert pumpline("top", *given, "--sort=in/s").code == 0


def test_a_node_that_fails_is_told(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    closed = HeldPort()
    flags = [f"--nsqd=127.0.0.1:{closed.number}", f"--nsqd={nsqd.http_address}"]
    said = pumpline("top", "--once", FAST, *flags)
    assert (said.code, said.json()["failures"]) == (
        1,
        {f"127.0.0.1:{closed.number}": "connection refused"},
    )


def test_a_node_that_goes_and_comes_back(nsqd: LocalNsqd) -> None:
    nsqd.publish("orders", b"1")
    options = TopOptions(nsqd=[nsqd.http_address])
    with ClusterClient(options) as cluster:
        call = Call(options, [], cluster, Output(as_json=True, as_table=False))
        poller = Poller(call)
        assert poller.poll().topics[0]["in"] is None
        assert poller.poll().topics[0]["in"] == 0.0
        nsqd.stop()
        gone = poller.poll()
        assert (gone.topics, list(gone.failures)) == ([], [nsqd.http_address])
        nsqd.start()
        back = poller.poll()
        assert (back.failures, back.topics[0]["in"]) == ({}, None)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "this is no terminal: say --once"),
        (["--view=clients"], "--view is one of nodes, topics, channels"),
        (["--sort=colour"], "--sort is one of topic, channel"),
        (["--interval=1ms"], "--interval is 100ms or more"),
    ],
)
def test_what_makes_no_sense(pumpline: Pumpline, given: list[str], why: str) -> None:
    said = pumpline("top", *given)
    assert (said.code, why in said.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["q", "ctrl-c", "terminate", "ctrl-z"])
def test_at_a_terminal(nsqd: LocalNsqd, end: str) -> None:
    nsqd.publish("orders", b"1")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "pumpline.tools.pumpline", "top", FAST]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        process_group=0,  # with a parent outside it: a group without one cannot be stopped
    ) as process:
        shown = b""

        def wait_for(text: bytes) -> None:
            nonlocal shown
            while text not in shown:
                shown += os.read(ours, 65536)
            shown = b""

        wait_for(b"billing")
        os.write(ours, b"2")
        wait_for(b"topics ")
        os.write(ours, b"/nothing\r")
        wait_for(b"0-0 of 0")
        if end == "ctrl-z":
            process.send_signal(signal.SIGTSTP)
            wait_for(GIVEN_BACK)
            os.waitpid(process.pid, os.WUNTRACED)
            assert termios.tcgetattr(theirs) == before
            process.send_signal(signal.SIGCONT)
            wait_for(b"0-0 of 0")
        if end in SIGNALS:
            process.send_signal(SIGNALS[end])
        else:
            os.write(ours, b"q")
        wait_for(GIVEN_BACK)
        assert process.wait(60) == 0
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
