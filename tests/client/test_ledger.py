"""The whole client on a bad network: nothing confirmed is lost, and no error is untrue.

A failed run names its seed: CLIENT_SEED=… plays it again (timing is the machine's own, so it may
take several tries). CLIENT_SECONDS is the length of the soak test.
"""

import asyncio
import contextlib
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from pumpline.client import Settings
from tests.kit.certificates import Authority, client_context
from tests.kit.client.chaos import trouble
from tests.kit.client.consuming import publish
from tests.kit.client.ledger import Books, Ledger, LedgerNode
from tests.kit.daemons import Nsqd
from tests.kit.proxy import Proxy

SEEDS = [os.environ["CLIENT_SEED"]] if "CLIENT_SEED" in os.environ else ["a"]
TROUBLES = 8  # some two seconds
FLAGS = ["--msg-timeout=2s"]  # what a lost connection held comes again soon

pytestmark = pytest.mark.slow


class KilledNsqd(Nsqd):
    def bounce(self) -> None:
        self.kill()
        self.start()


@contextlib.contextmanager
def killed_nsqds(path: Path, topic: str, flags: list[str]) -> Iterator[list[LedgerNode]]:
    with contextlib.ExitStack() as daemons:
        nsqds = [
            daemons.enter_context(KilledNsqd(path / f"data{number}", [*FLAGS, *flags]))
            for number in range(3)
        ]
        for nsqd in nsqds:
            publish(nsqd, topic, [])
        yield list(nsqds)


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing went wrong that nobody planned."""
    failed = [each for each in caplog.records if each.exc_info and each.levelno >= logging.ERROR]
    surprising = [each for each in failed if "on purpose" not in str(each.exc_info)]
    assert not surprising, surprising[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_the_books_balance(
    tmp_path: Path,
    topic: str,
    kind: str,
    seed: str,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_tls = kind == "tls"
    flags = authority.issue("nsqd").flags() if is_tls else []
    settings = Settings(
        connect_timeout_s=2,
        tls=client_context(authority=authority) if is_tls else False,
        snappy=is_tls,
    )
    with killed_nsqds(tmp_path, topic, flags) as nodes:
        await Ledger(f"{seed}{kind}", topic, nodes, settings).run(TROUBLES)
    check_log(caplog)


def test_they_balance_on_uvloop(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with killed_nsqds(tmp_path, topic, []) as nodes:
        uvloop.run(Ledger(SEEDS[0], topic, nodes).run(TROUBLES))
    check_log(caplog)


USERS_TEST = """
import asyncio
from pumpline.client import Settings
from pumpline.testing import LocalNsqd
from tests.kit.client.ledger import Ledger


class Node:
    def __init__(self, nsqd):
        self.nsqd = nsqd

    @property
    def tcp_port(self):
        return int(self.nsqd.tcp_address.rpartition(":")[2])

    def bounce(self):
        self.nsqd.restart()


def test_ledger(nsqd):
    assert isinstance(nsqd, LocalNsqd)  # the fixture of pumpline's plugin
    with LocalNsqd() as second:
        for each in (nsqd, second):
            each.post("/topic/create?topic=t")
            each.post("/channel/create?topic=t&channel=ch")
        settings = Settings(connect_timeout_s=2, msg_timeout_s=2)
        asyncio.run(Ledger("SEED", "t", [Node(nsqd), Node(second)], settings).run(TROUBLES))
"""


def test_they_balance_with_the_daemons_for_users_tests(tmp_path: Path) -> None:
    """In a run of pytest as users have it, with the fixtures that the plugin brings."""
    text = USERS_TEST.replace("SEED", SEEDS[0]).replace("TROUBLES", str(TROUBLES))
    (tmp_path / "test_users.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path), "--rootdir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["fork", "spawn"])
async def test_they_balance_in_worker_processes(tmp_path: Path, topic: str, kind: str) -> None:
    dice = random.Random(kind)
    with killed_nsqds(tmp_path, topic, []) as nodes:
        async with contextlib.AsyncExitStack() as network:
            proxies = [await network.enter_async_context(Proxy(node.tcp_port)) for node in nodes]
            command = ["-m", "tests.kit.client.workers", kind, topic, str(tmp_path)]
            addresses = [proxy.address for proxy in proxies]
            process = await asyncio.create_subprocess_exec(sys.executable, *command, *addresses)
            await proxies[0].until(lambda: proxies[0].accepted > 0)
            for _ in range(TROUBLES):
                await trouble(proxies, dice, kinds=("cut", "up", "down", "nothing"), stall_s=0.3)
            for proxy in proxies:
                proxy.heal()
            assert await process.wait() == 0
            ledger = Ledger(kind, topic, nodes)
            enter_told(ledger.books, tmp_path)
            await ledger.settle(addresses)


def enter_told(books: Books, directory: Path) -> None:
    """What the workers wrote."""
    entries = {"C": books.confirmed, "D": books.doubtful, "N": books.not_sent, "H": books.handled}
    for path in (*directory.glob("worker*"), *directory.glob("parent")):
        for line in path.read_text().splitlines():
            kind, body = line.split(" ")
            entries[kind].add(body.encode())
            if kind == "H":
                books.delivered[body.encode()] += 1


@pytest.mark.soak
@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_they_balance_for_a_long_time(tmp_path: Path, topic: str, runner: str) -> None:
    ends_at = time.monotonic() + float(os.environ.get("CLIENT_SECONDS", "60"))
    while time.monotonic() < ends_at:
        seed = os.environ.get("CLIENT_SEED") or str(random.SystemRandom().randrange(10**9))
        run = uvloop.run if runner == "uvloop" else asyncio.run
        with killed_nsqds(tmp_path / seed, topic, []) as nodes:
            try:
                run(Ledger(seed, topic, nodes).run(4 * TROUBLES))
            except BaseException as error:
                raise AssertionError(f"CLIENT_SEED={seed}") from error
