"""A tool that is given nsqd's HTTP port for its TCP port says so, and does not fill its log.

Where NSQ's tool ends, ours ends; where it tries again, ours does.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from pumpline.tools.nsq_tail.command import NSQ_TAIL
from pumpline.tools.nsq_to_file.command import NSQ_TO_FILE
from pumpline.tools.nsq_to_http.command import NSQ_TO_HTTP
from pumpline.tools.nsq_to_nsq.command import NSQ_TO_NSQ
from pumpline.tools.tool import Signals, Tool, ToolFailure
from tests.kit.client.consuming import until
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.nsq_tools import last_line, run_tool

pytestmark = pytest.mark.deviation  # NSQ's tools say `unexpected EOF`

AN_HTTP_PORT = "an HTTP port; nsqd's TCP port is needed"


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        (NSQ_TAIL, []),
        (NSQ_TO_HTTP, ["--post=http://127.0.0.1:1"]),
        (NSQ_TO_NSQ, ["--destination-nsqd-tcp-address=127.0.0.1:1"]),
    ],
)
async def test_at_the_start_it_ends_the_tool(
    nsqd: Nsqd, topic: str, tmp_path: Path, tool: Tool[Any], flags: list[str]
) -> None:
    async def failure(address: str) -> str:
        options = tool.options.parse([*flags, f"--topic={topic}", f"--nsqd-tcp-address={address}"])
        with pytest.raises(ToolFailure) as failed:
            await tool.work(options, Signals())
        return str(failed.value)

    assert await failure(nsqd.http_address) == f"{nsqd.http_address}: {AN_HTTP_PORT}"
    with Nsqlookupd(tmp_path / "log") as nsqlookupd:
        assert "an nsqlookupd's TCP port" in await failure(nsqlookupd.tcp_address)


def test_to_nsq_ends_with_it(nsqd: Nsqd, topic: str) -> None:
    flags = (f"--topic={topic}", f"--nsqd-tcp-address={nsqd.http_address}")
    done = run_tool("to_nsq", *flags, input=b"line\n")
    assert (done.returncode, last_line(done.stderr)) == (1, f"{nsqd.http_address}: {AN_HTTP_PORT}")


async def test_nsq_to_file_says_it_once_and_tries_again(
    nsqd: Nsqd, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pumpline.client")
    told = f"{nsqd.http_address}: {AN_HTTP_PORT}"

    def levels() -> list[int]:
        return [each.levelno for each in caplog.records if each.getMessage() == told]

    address = f"--nsqd-tcp-address={nsqd.http_address}"
    options = NSQ_TO_FILE.options.parse([f"--topic={topic}", f"--output-dir={tmp_path}", address])
    signals = Signals()
    running = asyncio.create_task(NSQ_TO_FILE.work(options, signals))
    await until(lambda: len(levels()) > 2)
    signals.stop.set()
    await running
    assert levels().count(logging.WARNING) == 1


async def test_a_destination_is_tried_again_and_its_fault_is_told(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=nsq_to_nsq")
    nsqd.http("POST", f"/pub?topic={topic}", b"x")
    flags = [
        f"--topic={topic}",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        f"--destination-nsqd-tcp-address={nsqd.http_address}",
    ]
    signals = Signals()
    running = asyncio.create_task(NSQ_TO_NSQ.work(NSQ_TO_NSQ.options.parse(flags), signals))
    said = f"ERROR: publishing failed: {nsqd.http_address}: {AN_HTTP_PORT}"
    await until(lambda: said in caplog.messages)
    signals.stop.set()
    await running
    assert nsqd.channel_stats(topic, "nsq_to_nsq")["deferred_count"] == 1
