"""What a driver is asked to do, and the line it prints at the end.

Every library gets the same: as many messages under way, of the same size, for as long. What is
counted is what nsqd has confirmed, or what was finished.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

BODY = b"x" * 200
PUBLISHERS = 100  # of single messages, each waiting for its answer
BATCH = 200  # messages in an MPUB
BATCHES_UNDER_WAY = 4
IN_FLIGHT_MAX = 2500
CHANNEL = "bench"


@dataclass
class Stint:
    """Call `begin` when all is set up, count `messages`, and stop when `is_over`."""

    workload: str
    address: str
    topic: str
    seconds: float
    messages_max: int
    messages: int = 0
    _from_s: float = 0.0
    _from_cpu_s: float = 0.0
    _until_s: float = 0.0

    @classmethod
    def from_arguments(cls) -> Stint:
        workload, address, topic, seconds, messages_max = sys.argv[1:6]
        return cls(workload, address, topic, float(seconds), int(messages_max))

    def begin(self) -> None:
        self._from_s = time.perf_counter()
        self._from_cpu_s = _cpu_s()
        self._until_s = self._from_s + self.seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._until_s or self.messages >= self.messages_max

    @property
    def publishers(self) -> int:
        """Of single messages."""
        return PUBLISHERS if self.workload == "pub" else 1

    async def publish(
        self, workers: int, send: Callable[[str, Any], Awaitable[object]], what: Any, count: int
    ) -> None:
        """All of it, with clients that are awaited; `what` is so many messages."""

        async def work() -> None:
            while not self.is_over:
                await send(self.topic, what)
                self.messages += count

        self.begin()
        await asyncio.gather(*(work() for _ in range(workers)))
        self.report()

    def consumed(self) -> bool:
        """Count a message, the first of which begins the stint; whether it was the last one."""
        if not self.messages:
            self.begin()
        self.messages += 1
        # The clock costs a tenth of what our handler costs: not for every message.
        if self.messages >= self.messages_max:
            return True
        return self.messages % 256 == 0 and time.perf_counter() >= self._until_s

    def count_consumed(self) -> None:
        """Count a message; after the last one report, and end the process."""
        if self.consumed():
            self.report()
            os._exit(0)

    def report(self) -> None:
        seconds = time.perf_counter() - self._from_s
        total_cpu_s = _cpu_s()
        outcome = {
            "messages": self.messages,
            "seconds": seconds,
            "cpu_s": total_cpu_s - self._from_cpu_s,
            "total_cpu_s": total_cpu_s,
        }
        print(json.dumps(outcome), flush=True)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
