"""A sampling profile of one thread: what it was doing, every few milliseconds, from outside.

The result is in the folded form that flame graph tools read: a line for each stack, outermost
call first and calls separated by `;`, then a space and the number of samples.
"""

import sys
import threading
from collections import Counter
from types import FrameType

INTERVAL_S = 0.005
DEPTH_MAX = 200


class Profile:
    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._stacks: Counter[str] = Counter()
        self._stop = threading.Event()

    def run(self, seconds: float) -> str:
        """Sample for so long, or until `stop`; for a thread of its own."""
        for _ in range(int(seconds / INTERVAL_S)):
            if self._stop.wait(INTERVAL_S):
                break
            frame = sys._current_frames().get(self._thread_id)
            self._stacks[folded(frame)] += 1
        lines = [f"{stack} {count}\n" for stack, count in self._stacks.most_common()]
        return "".join(lines)

    def stop(self) -> None:
        self._stop.set()


def folded(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < DEPTH_MAX:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(calls))
