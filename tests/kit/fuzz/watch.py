"""Looks after an nsqd under attack: that it lives, keeps calm and gives back what it took.

Sockets must return to what they were. Files need not: segments stay open in a pool of bounded size.
"""

import os
from typing import Any
from urllib.parse import quote

from tests.kit.daemons import Nsqd, wait_until

# What a healthy process never writes. Clients cannot make it write these: their lines are shown
# after a prefix, and the generators do not know the words.
ALARMS = ("Traceback (most recent call last)", "panic in HTTP", "Logging error", " FATAL: ")
GROWTH_BYTES_MAX = 100 << 20
SETTLE_S = 60.0


class Watch:
    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._sockets = self.sockets()
        self._memory_bytes = self.memory_bytes()
        self._log_at = 0
        self.check_log()

    def sockets(self) -> int:
        directory = f"/proc/{self._nsqd.process.pid}/fd"
        count = 0
        for name in os.listdir(directory):
            try:
                count += os.readlink(f"{directory}/{name}").startswith("socket:")
            except FileNotFoundError:
                continue  # closed since it was listed
        return count

    def memory_bytes(self) -> int:
        with open(f"/proc/{self._nsqd.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))

    def forgive_growth(self) -> None:
        """Count from here, once it is calm."""
        wait_until(self.is_calm, SETTLE_S)
        self._memory_bytes = self.memory_bytes()

    def is_calm(self, more_sockets: int = 0) -> bool:
        """Whether all connections opened since the start are closed, but for so many."""
        return self.sockets() <= self._sockets + more_sockets

    def check(self, more_sockets: int = 0) -> None:
        """Once the attack is over. `more_sockets`: that it may keep."""
        assert self._nsqd.is_running, self._nsqd.log_text()[-3000:]
        wait_until(lambda: self.is_calm(more_sockets), SETTLE_S)
        self.check_log()
        growth_bytes = self.memory_bytes() - self._memory_bytes
        assert growth_bytes < GROWTH_BYTES_MAX, f"{growth_bytes >> 20} MiB more than before"

    def check_log(self) -> None:
        """Nothing alarming in the log since the last check."""
        with self._nsqd.log_path.open("rb") as log:
            log.seek(self._log_at)
            text = log.read().decode(errors="replace")
            self._log_at = log.tell()
        for alarm in ALARMS:
            at = text.find(alarm)
            assert at < 0, text[max(at - 300, 0) : at + 3000]


def topics(nsqd: Nsqd) -> dict[str, dict[str, Any]]:
    """The figures of all topics, by name."""
    return {topic["topic_name"]: topic for topic in nsqd.stats()["topics"]}


def delete_topics(nsqd: Nsqd, *, but: str = "") -> None:
    for name in topics(nsqd):
        if name != but:
            status, body = nsqd.http("POST", f"/topic/delete?topic={quote(name)}")
            assert status in (200, 404), (name, status, body)  # an ephemeral one may be gone
