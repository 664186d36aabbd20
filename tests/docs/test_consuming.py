"""docs/consuming.md and the examples that consume: every program runs, and ends in good order."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.programs import running

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PROGRAMS = BLOCK.findall((ROOT / "docs" / "consuming.md").read_text())
ORDERS = [json.dumps({"number": n, "customer": "c"}).encode() for n in range(20)]


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    process.send_signal(number)
    printed, _ = process.communicate(timeout=30)
    return printed


def prepared(nsqd: LocalNsqd, topic: str, channel: str, bodies: list[bytes]) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies))


@pytest.mark.parametrize(
    ("program", "channel", "number", "code", "says"),
    [
        (PROGRAMS[0], "billing", signal.SIGINT, -signal.SIGINT, 'b\'{"number": 19'),
        (PROGRAMS[1], "billing", signal.SIGTERM, 0, "and close it here"),
        (PROGRAMS[2], "billing", signal.SIGTERM, 0, "orders handled in"),
        (PROGRAMS[3], "billing", signal.SIGTERM, 0, "of orders/billing attempts=1 bytes="),
        (PROGRAMS[4], "archive", signal.SIGINT, -signal.SIGINT, "20 stored"),
        (PROGRAMS[5], "archive", signal.SIGTERM, 0, "20 rows inserted"),
        (PROGRAMS[6], "billing", signal.SIGTERM, 0, "orders {'number': 19"),
        (PROGRAMS[7], "billing", signal.SIGTERM, 0, "order 19 of c"),
        (PROGRAMS[8], "billing", signal.SIGINT, 0, "no such customer"),
    ],
    ids=[
        "one at a time",
        "handler",
        "middleware",
        "ready-made middleware",
        "many at a time",
        "handler of batches",
        "several topics",
        "types",
        "giving up",
    ],
)
def test_programs_on_the_page(
    program: str, channel: str, number: signal.Signals, code: int, says: str
) -> None:
    with LocalNsqd() as nsqd:
        prepared(nsqd, "orders", channel, ORDERS)
        program = program.replace("127.0.0.1:4150", nsqd.tcp_address).replace("9100", "0")
        with running("-c", program) as process:
            nsqd.wait_until_done("orders", channel, timeout_s=30)
            printed = end(process, number)
        assert (process.returncode, says in printed) == (code, True), printed
        if says == "no such customer":
            assert nsqd.depth("orders.dlq") == len(ORDERS)


def test_all_programs_of_the_page_are_run() -> None:
    assert len(PROGRAMS) == 9


def test_example_of_iterating() -> None:
    with LocalNsqd() as nsqd:
        prepared(nsqd, "lines", "count", [b"to be or", b"not to be", b"\xff"])
        with running(str(ROOT / "examples" / "consume_iterate.py"), nsqd.tcp_address) as process:
            nsqd.wait_until_done("lines", "count", timeout_s=30)
            printed = end(process, signal.SIGTERM)
        assert "is left out" in printed
        assert printed.endswith("6 words, 4 of them different\n")


def test_example_of_a_handler() -> None:
    odd = [b'{"number": 99, "customer": null}', b'{"number": 100}']
    with LocalNsqd() as nsqd:
        prepared(nsqd, "orders", "billing", [*ORDERS, *odd])
        with running(str(ROOT / "examples" / "consume_handler.py"), nsqd.tcp_address) as process:
            nsqd.wait_until_done("orders", "billing", timeout_s=30)
            printed = end(process, signal.SIGTERM)
        assert "order 19 billed, attempt 1\n" in printed
        assert "order 99 billed, attempt 2\n" in printed
        assert printed.endswith("22 messages finished\n")
        assert nsqd.depth("orders.dlq") == 1


def test_example_of_batches(tmp_path: Path) -> None:
    words = [str(ROOT / "examples" / "consume_batches.py")]
    with LocalNsqd() as nsqd:
        prepared(nsqd, "orders", "archive", ORDERS * 100)
        with running(*words, nsqd.tcp_address, str(tmp_path / "orders.sqlite")) as process:
            nsqd.wait_until_done("orders", "archive", timeout_s=30)
            printed = end(process, signal.SIGTERM)
    assert printed == "2000 orders stored\n"
