"""nsq_to_file killed at any moment: its files can be read, have every message, and few twice.

What was synced and not finished when the tool was killed comes again: at most one sync's worth for
each kill.
"""

import gzip
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cramjam
import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool

SEED = int(os.environ.get("PUMPLINE_CRASH_SEED", "18"))
WINDOW = 50

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def bodies_in(path: Path, is_lines: bool) -> list[bytes]:
    """Raises if the file cannot be read to its end."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = bytes(cramjam.zstd.decompress(data))
    if is_lines:
        assert not data or data.endswith(b"\n")
        return data.splitlines()
    bodies, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        bodies.append(data[at + 4 : at + 4 + size])
        assert len(bodies[-1]) == size
        at += 4 + size
    return bodies


EXTRA_KILLS_MAX = 50

PLAIN: tuple[str, ...] = ()
GZIP = ("--gzip",)
ZSTD_ROTATED = ("--zstd", "--rotate-size=20000")
GZIP_WORK_DIR = ("--gzip", "--work-dir={directory}/work")
PLAIN_ROTATED = ("--rotate-interval=30ms", "--work-dir={directory}/work")
LENGTHS = ("--framing=length",)
OTHER_FILE_SYSTEM = ("--zstd", "--rotate-size=20000", "--work-dir={memory}")

FEW = pytest.param(4_000, 6, id="few")
MANY = pytest.param(100_000, 80, id="many", marks=pytest.mark.soak)


@pytest.mark.parametrize(("messages", "kills"), [FEW, MANY])
@pytest.mark.parametrize(
    "flags",
    [PLAIN, GZIP, ZSTD_ROTATED, GZIP_WORK_DIR],
    ids=["plain", "gzip", "zstd-rotated", "gzip-work-dir"],
)
def test_every_message_is_there_and_files_can_be_read(
    own_nsqd: Nsqd, tmp_path: Path, flags: tuple[str, ...], messages: int, kills: int
) -> None:
    work = KilledWork(own_nsqd, tmp_path, flags, messages)
    work.run(kills=kills, hang_ups=0)
    work.check()


@pytest.mark.parametrize(("messages", "kills"), [pytest.param(2_000, 3, id="few"), MANY])
@pytest.mark.parametrize(
    "flags",
    [PLAIN_ROTATED, LENGTHS, OTHER_FILE_SYSTEM],
    ids=["plain-rotated-work-dir", "length", "zstd-other-file-system"],
)
def test_it_is_so_with_hang_ups_in_between(
    own_nsqd: Nsqd, tmp_path: Path, flags: tuple[str, ...], messages: int, kills: int
) -> None:
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        given = tuple(flag.replace("{memory}", directory) for flag in flags)
        work = KilledWork(own_nsqd, tmp_path, given, messages)
        work.run(kills=kills, hang_ups=3)
        work.check()
        assert not list(Path(directory).iterdir())


class KilledWork:
    """A topic that gets messages, and nsq_to_file on it, which is killed again and again."""

    def __init__(self, nsqd: Nsqd, directory: Path, flags: tuple[str, ...], messages: int) -> None:
        self._nsqd = nsqd
        self._chance = random.Random(SEED)
        self._directory = directory
        self._messages = messages
        self._expected: list[bytes] = []
        self._kills = 0
        self._is_lines = "--framing=length" not in flags
        nsqd.http("POST", "/topic/create?topic=t")
        nsqd.http("POST", "/channel/create?topic=t&channel=nsq_to_file")
        self._tool = RunningTool(
            "nsq_to_file",
            "--topic=t",
            f"--nsqd-tcp-address={nsqd.tcp_address}",
            f"--output-dir={directory / 'out'}",
            f"--max-in-flight={WINDOW}",
            "--sync-interval=20ms",
            "--datetime-format=fixed",
            *(flag.format(directory=directory) for flag in flags),
            directory=directory,
        )

    def run(self, *, kills: int, hang_ups: int) -> None:
        """Kill it so often, and further until a kill left something unfinished: on a busy machine,
        all may be written before it is killed."""
        count = self._messages // kills
        done, has_struck = 0, False
        while done < kills or not has_struck:
            self._publish(count)
            with self._tool as tool:
                left = self._depth() - count // 2
                wait_until(lambda: self._stats()["client_count"])
                for _ in range(hang_ups):
                    self._wait_for(left + self._chance.randrange(count // 2))
                    tool.hang_up()
                self._wait_for(left)
                time.sleep(self._chance.random() * 0.01)  # anywhere in a sync
                tool.kill()
            done += 1
            has_struck = has_struck or self._depth() > 0
            assert done < kills + EXTRA_KILLS_MAX
        self._kills = done
        with self._tool as tool:
            wait_until(lambda: self._stats()["client_count"])
            wait_until(lambda: not self._depth(), 300)
            assert tool.stop() == 0, tool.stderr

    def _publish(self, count: int) -> None:
        begin = len(self._expected)
        new = [b"message %d %s" % (n, b"x" * (n % 40)) for n in range(begin, begin + count)]
        self._expected += new
        with self._nsqd.connect() as client:
            for at in range(0, count, 1000):
                client.mpub("t", new[at : at + 1000])

    def check(self) -> None:
        files = list((self._directory / "out").iterdir())
        counts = Counter(body for path in files for body in bodies_in(path, self._is_lines))
        assert counts.keys() == set(self._expected)
        assert sum(counts.values()) - len(self._expected) <= self._kills * WINDOW
        assert not list((self._directory / "work").glob("*"))

    def _wait_for(self, depth: int) -> None:
        wait_until(lambda: self._depth() <= max(0, depth))

    def _depth(self) -> int:
        stats = self._stats()
        return int(stats["depth"] + stats["in_flight_count"])

    def _stats(self) -> dict[str, Any]:
        return self._nsqd.channel_stats("t", "nsq_to_file")


def memory() -> str | None:
    """A directory of another file system than that of tmp_path, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
