"""The task of a driver, and the line it prints at the end.

Every library gets the same task: the same number of messages in flight, of the same size, for the
same time. Counted are messages that nsqd has confirmed, or that were finished.
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
from functools import cache
from typing import Any

BODY = b"x" * 200
PUBLISHERS = 100  # of single messages, each waits for its answer
BATCH = 200  # messages in an MPUB
BATCHES_UNDER_WAY = 4
IN_FLIGHT_MAX = 2500
CHANNEL = "bench"
TOPICS = 100  # of pub_topics, in turn


@dataclass
class Task:
    """Call `begin` after the set-up, count `messages`, and stop when `is_over`."""

    workload: str
    address: str
    topic: str
    seconds: float
    messages_max: int
    messages: int = 0
    _turn: int = 0
    _from_s: float = 0.0
    _from_cpu_s: float = 0.0
    _until_s: float = 0.0

    @classmethod
    def from_arguments(cls) -> Task:
        workload, address, topic, seconds, messages_max = sys.argv[1:6]
        return cls(workload, address, topic, float(seconds), int(messages_max))

    @property
    def topics(self) -> list[str]:
        return topics_of(self.workload, self.topic)

    def next_topic(self) -> str:
        """The topic of the next publish."""
        if self.workload != "pub_topics":
            return self.topic
        self._turn += 1
        return self.topics[self._turn % TOPICS]

    def begin(self) -> None:
        self._from_s = time.perf_counter()
        self._from_cpu_s = _cpu_s()
        self._until_s = self._from_s + self.seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._until_s or self.messages >= self.messages_max

    @property
    def publishers(self) -> int:
        """How many publish single messages at the same time."""
        return 1 if self.workload == "pub_one" else PUBLISHERS

    async def publish(
        self, workers: int, send: Callable[[str, Any], Awaitable[object]], what: Any, count: int
    ) -> None:
        """Does the whole task with an asyncio client; each `what` holds `count` messages."""

        async def work() -> None:
            while not self.is_over:
                await send(self.next_topic(), what)
                self.messages += count

        self.begin()
        await asyncio.gather(*(work() for _ in range(workers)))
        self.report()

    def consumed(self) -> bool:
        """Count a message; return whether it was the last. The first message begins the task."""
        if not self.messages:
            self.begin()
        self.messages += 1
        # Reading the clock costs a tenth of our handler, so it is read every 256 messages.
        if self.messages >= self.messages_max:
            return True
        return self.messages % 256 == 0 and time.perf_counter() >= self._until_s

    def count_consumed(self) -> None:
        """Count a message; after the last one, report and end the process."""
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


@cache
def topics_of(workload: str, topic: str) -> list[str]:
    """All topics of a workload."""
    if workload != "pub_topics":
        return [topic]
    return [f"{topic}_{number:03}" for number in range(TOPICS)]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
