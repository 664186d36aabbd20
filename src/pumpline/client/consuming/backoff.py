"""When messages fail: how long the whole consumer holds back, and when it tries again.

The rule: a consumer backs off when at least two different messages, and more than half of the last
ten that were answered, have failed. So a message that fails alone does not hold back the others.

A counter, a wait, and one message at a time:

| phase   | success                   | failure                    | neither         | time is up |
|---------|---------------------------|----------------------------|-----------------|------------|
| OPEN    |                           | by the rule: counter 1,    |                 |            |
|         |                           | WAITING                    |                 |            |
| WAITING | ignored                   | ignored                    | ignored         | PROBING    |
| PROBING | counter - 1; OPEN at 0,   | counter + 1 unless its     | WAITING, same   |            |
|         | otherwise WAITING         | wait is too long; WAITING  | counter         |            |

The wait of counter c is multiplier * 2^c, at most the longest; with full jitter it is a random
part of that. The first failure always counts, even if its wait has to be cut to the longest.
A longest wait of 0 turns backing off off.

Sans-IO: time is an argument and so is the source of randomness.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import repeat
from math import inf

from pumpline.client.settings import BACKOFF_MAX_S, BACKOFF_MULTIPLIER_S

RECENT = 10  # answers that the rule looks at
FAILED_MIN = 2  # different messages
LEVEL_MAX = 62  # 2^62 seconds is long enough


class BackoffPhase(Enum):
    OPEN = "open"
    WAITING = "waiting"
    PROBING = "probing"


class Backoff:
    def __init__(
        self,
        *,
        multiplier_s: float = BACKOFF_MULTIPLIER_S,
        wait_max_s: float = BACKOFF_MAX_S,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        """`jitter` gives numbers in [0, 1): full jitter; without it waits are exact."""
        self._multiplier_s = multiplier_s
        self._wait_max_s = wait_max_s
        self._jitter = jitter
        self.phase = BackoffPhase.OPEN
        self.level = 0
        self.ends_at = inf  # of the wait
        self.is_calm = False  # open, and none of the recent answers was a failure
        self._recent: deque[bytes | None] = deque(maxlen=RECENT)  # ids of failed messages, or None

    def succeeded(self, count: int, now: float) -> None:
        """So many messages at the same time. Need not be called while `is_calm`."""
        if self.phase is BackoffPhase.OPEN:
            self._recent.extend(repeat(None, min(count, RECENT)))
            self.is_calm = len(self._recent) == self._recent.count(None) == RECENT
        elif self.phase is BackoffPhase.PROBING:
            self.level -= 1
            if self.level:
                self._wait(now)
            else:
                self.phase = BackoffPhase.OPEN

    def failed(self, message_id: bytes, now: float) -> None:
        if self.phase is BackoffPhase.WAITING or not self._wait_max_s or not self._multiplier_s:
            return
        if self.phase is BackoffPhase.OPEN:
            self.is_calm = False
            if message_id not in self._recent:
                self._recent.append(message_id)
            failed = len(self._recent) - self._recent.count(None)
            if failed < FAILED_MIN or 2 * failed <= len(self._recent):
                return
            self._recent.clear()
        is_first = self.level == 0
        if is_first or self._full_wait_s(self.level + 1) <= self._wait_max_s:
            self.level = min(self.level + 1, LEVEL_MAX)
        self._wait(now)

    def passed(self, now: float) -> None:
        """A message was answered in a way that says nothing of its handler's health."""
        if self.phase is BackoffPhase.PROBING:
            self._wait(now)

    def elapse(self, now: float) -> None:
        """Ends the wait, if its time has come."""
        if self.phase is BackoffPhase.WAITING and now >= self.ends_at:
            self.phase = BackoffPhase.PROBING
            self.ends_at = inf

    def _wait(self, now: float) -> None:
        wait_s = min(self._full_wait_s(self.level), self._wait_max_s)
        if self._jitter is not None:
            wait_s *= self._jitter()
        self.phase = BackoffPhase.WAITING
        self.ends_at = now + wait_s

    def _full_wait_s(self, level: int) -> float:
        return self._multiplier_s * float(2**level)
