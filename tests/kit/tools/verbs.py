"""Runs commands of pumpline as a user does, here or in a shell, and reads what they say."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pumpline.sync import Consumer
from pumpline.testing import LocalNsqd, LocalNsqlookupd
from pumpline.tools import pumpline
from tests.kit.daemons import wait_until
from tests.kit.nsqlookupd.peer import Peer

SHELL_TIMEOUT_S = 120.0
EXAMPLE = re.compile(r"^Examples:\n((?:  .*\n?)+)", re.M)


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> list[list[str]]:
        """Of a table, without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Fleet(NamedTuple):
    lookupd: LocalNsqlookupd
    one: LocalNsqd
    two: LocalNsqd


class Pumpline:
    """The pumpline command, in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Said:
        self._capture.readouterr()
        code = pumpline.main(list(arguments))
        shown = self._capture.readouterr()
        return Said(code, shown.out, shown.err)


def in_shell(command: str, cwd: Path | None = None, **environment: str) -> Said:
    """A command line, in which `pumpline` is the one under test."""
    python = f"{shlex.quote(sys.executable)} -m pumpline.tools.pumpline"
    done = subprocess.run(
        ["bash", "-c", f'pumpline() {{ {python} "$@"; }}\n{command}'],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SHELL_TIMEOUT_S,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def examples_of(usage: str) -> list[str]:
    """The commands that a help text ends with."""
    found = EXAMPLE.search(usage)
    assert found is not None, usage
    return [line.strip() for line in found[1].splitlines()]


def lose_node(lookupd: LocalNsqlookupd, host: str) -> None:
    """An nsqd of that host, at port 4150, registers a topic and goes away."""
    with Peer(int(lookupd.tcp_address.rpartition(":")[2])) as peer:
        peer.identify(broadcast_address=host)
        peer.register("lost")
    wait_until(lambda: host.encode() in lookupd.get("/nodes?lost=true").partition(b'"lost"')[2])


def give_up(nsqd: LocalNsqd, topic: str, *bodies: bytes) -> None:
    """Make dead letters of messages: a consumer sends each back once."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/topic/settings?topic={topic}", b'{"max_attempts":1}')
    nsqd.publish(topic, *bodies)
    with Consumer(topic, "refusing", nsqd=nsqd.tcp_address) as consumer:
        for _, message in zip(bodies, consumer, strict=False):
            message.requeue(0, backoff=False)
    nsqd.wait_until_done(topic, "refusing", 60.0)
