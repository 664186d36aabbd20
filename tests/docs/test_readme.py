"""README.md: its programs run, its commands are taken, its figures are those of performance.md."""

import ast
import asyncio
import json
import re
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

from pumpline.testing import LocalNsqd, LocalNsqlookupd
from tests.docs.test_pipelines import commands
from tests.kit.daemons import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
DONE_S_MAX = 60.0


def compiled(text: str) -> CodeType:
    """As in a notebook or `python -m asyncio`, where one may await outside of a function."""
    code: Any = compile(text, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code  # type: ignore[no-any-return]


async def run_until_done(program: str, nsqd: LocalNsqd, topic: str, channel: str) -> None:
    """A program that consumes for ever, until it has finished what there was."""
    done = asyncio.to_thread(nsqd.wait_until_done, topic, channel, DONE_S_MAX)
    running = asyncio.ensure_future(eval(compiled(program), {"__name__": "page"}))
    waiting = asyncio.ensure_future(done)
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), running
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await waiting


def producers(lookup: LocalNsqlookupd, topic: str) -> list[object]:
    nodes = json.loads(lookup.get("/nodes"))["producers"]
    return [node for node in nodes if topic in node["topics"]]


def test_the_program_publishes_and_consumes() -> None:
    (program,) = PROGRAMS
    with LocalNsqlookupd() as lookup:
        flag = f"--lookupd-tcp-address={lookup.tcp_address}"
        with LocalNsqd(flag, "--broadcast-address=127.0.0.1") as nsqd, LocalNsqd() as other:
            program = program.replace("127.0.0.1:4150", nsqd.tcp_address)
            program = program.replace("127.0.0.1:5150", other.tcp_address)
            program = program.replace("127.0.0.1:4161", lookup.http_address)
            # A consumer that is quicker than the registration asks again after a minute only.
            nsqd.post("/topic/create?topic=orders")
            wait_until(lambda: producers(lookup, "orders"))
            asyncio.run(run_until_done(program, nsqd, "orders", "billing"))
            assert nsqd.stats("orders")["message_count"] == 1
            assert other.stats("orders") == {}


def test_commands_of_pipelines_are_taken() -> None:
    shown = commands(PAGE)
    assert {command[0] for command in shown} >= {"archive", "sql"}
    for name, *arguments in shown:
        parser = ArgumentParser()
        import_module(f"pyspark_nsq.pipelines.{name}").arguments(parser)
        parser.parse_args(arguments)


def test_figures_are_those_of_the_page_about_performance() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5  # a head, and five workloads
    assert set(rows) <= set((ROOT / "docs" / "performance.md").read_text().splitlines())


def test_it_is_short() -> None:
    assert len(PAGE.split()) <= 600
