"""A sampling profile of the main thread: what it was doing, every few milliseconds of CPU time.

A timer signal interrupts the thread wherever it is. (A second thread that looks at it sees it
only where it lets go of the interpreter lock, that is, in system calls.) The result is in the
folded form that flame graph tools read: a line for each stack, outermost call first and calls
separated by `;`, then a space and the number of samples.
"""

import signal
from collections import Counter
from types import FrameType, TracebackType
from typing import Self

INTERVAL_S = 0.005
DEPTH_MAX = 200


class Profile:
    """Samples while entered; only the main thread can enter."""

    def __init__(self) -> None:
        self._stacks: Counter[str] = Counter()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default, of which the process would die if a last signal were still to come.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def text(self) -> str:
        return "".join(f"{stack} {count}\n" for stack, count in self._stacks.most_common())

    def _sample(self, number: int, frame: FrameType | None) -> None:
        self._stacks[folded(frame)] += 1


def folded(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < DEPTH_MAX:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(calls))
