"""nsq_to_file killed at any moment: its files can be read, have every message, and few twice.

What was synced and not finished when the tool was killed comes again: at most one sync's worth for
each kill.
"""

import gzip
import os
import random
import time
from collections import Counter
from pathlib import Path

import cramjam
import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool

SEED = int(os.environ.get("PUMPLINE_CRASH_SEED", "18"))
MESSAGES = 4_000
KILLS = 6
WINDOW = 50

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def bodies_in(path: Path) -> list[bytes]:
    """Raises if the file cannot be read to its end."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = bytes(cramjam.zstd.decompress(data))
    assert not data or data.endswith(b"\n")
    return data.splitlines()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--gzip",),
        ("--zstd", "--rotate-size=20000"),
        ("--gzip", "--work-dir={directory}/work"),
    ],
    ids=["plain", "gzip", "zstd-rotated", "gzip-work-dir"],
)
def test_every_message_is_there_and_files_can_be_read(
    own_nsqd: Nsqd, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    chance = random.Random(SEED)
    own_nsqd.http("POST", "/topic/create?topic=t")
    own_nsqd.http("POST", "/channel/create?topic=t&channel=nsq_to_file")
    expected = [b"message %d %s" % (n, b"x" * (n % 40)) for n in range(MESSAGES)]
    with own_nsqd.connect() as client:
        client.mpub("t", expected)

    def depth() -> int:
        stats = own_nsqd.channel_stats("t", "nsq_to_file")
        return int(stats["depth"] + stats["in_flight_count"])

    tool = RunningTool(
        "nsq_to_file",
        "--topic=t",
        f"--nsqd-tcp-address={own_nsqd.tcp_address}",
        f"--output-dir={tmp_path / 'out'}",
        f"--max-in-flight={WINDOW}",
        "--sync-interval=20ms",
        "--datetime-format=fixed",
        *(flag.format(directory=tmp_path) for flag in flags),
        directory=tmp_path,
    )
    for kill in range(KILLS):
        with tool:
            left = depth() - MESSAGES // (2 * KILLS)
            wait_until(lambda left=left: depth() <= max(0, left))  # type: ignore[misc]
            time.sleep(chance.random() * 0.01)  # anywhere in a sync
            tool.kill()
        assert depth() or kill
    with tool:
        wait_until(lambda: own_nsqd.channel_stats("t", "nsq_to_file")["client_count"])
        wait_until(lambda: not depth())
        assert tool.stop() == 0, tool.stderr
    counts = Counter(body for path in (tmp_path / "out").iterdir() for body in bodies_in(path))
    assert counts.keys() == set(expected)
    assert sum(counts.values()) - MESSAGES <= KILLS * WINDOW
    assert not list((tmp_path / "work").glob("*"))
