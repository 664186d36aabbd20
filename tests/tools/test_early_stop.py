"""A signal that comes while a tool is still starting stops it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pumpline.tools.nsq_tail.command import NSQ_TAIL
from pumpline.tools.nsq_to_file.command import NSQ_TO_FILE
from pumpline.tools.nsq_to_http.command import NSQ_TO_HTTP
from pumpline.tools.nsq_to_nsq.command import NSQ_TO_NSQ
from pumpline.tools.tool import Signals, Tool
from tests.kit.daemons import Nsqd

pytestmark = pytest.mark.deviation


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        (NSQ_TAIL, []),
        (NSQ_TO_FILE, ["--output-dir={directory}"]),
        (NSQ_TO_HTTP, ["--post=http://127.0.0.1:1"]),
        (NSQ_TO_NSQ, ["--destination-nsqd-tcp-address={tcp}"]),
        (NSQ_TO_NSQ, ["--tokens", "--destination-nsqd-http-address={http}"]),
    ],
)
async def test_it_ends(
    nsqd: Nsqd, topic: str, tmp_path: Path, tool: Tool[Any], flags: list[str]
) -> None:
    given = [
        flag.format(directory=tmp_path, tcp=nsqd.tcp_address, http=nsqd.http_address)
        for flag in (*flags, f"--topic={topic}", "--nsqd-tcp-address={tcp}")
    ]
    signals = Signals()
    signals.stop.set()
    async with asyncio.timeout(60):
        await tool.work(tool.options.parse(given), signals)
