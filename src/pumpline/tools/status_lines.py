"""The status lines of nsq_to_nsq and nsq_to_http: how long the last messages took.

    [aggregate]: finished 250 - 99th: 0.82ms - 95th: 0.71ms - avg: 0.36ms

One for all destinations and, if there are several, one for each, every `status_every` messages.
"""

from collections.abc import Sequence

from pumpline.tools.tool import log

ACCURATE_FROM = 100
AGGREGATE = "aggregate"


class StatusLines:
    def __init__(self, addresses: Sequence[str], status_every: int) -> None:
        names = [AGGREGATE, *(addresses if len(addresses) > 1 else ())]
        self._every = status_every
        self._taken_s: dict[str, list[float]] = {name: [] for name in names if status_every > 0}
        for _ in self._taken_s if status_every < ACCURATE_FROM else ():
            text = "Warning: use more than %d status values for accurate percentiles"
            log.info(f"{text} (configured with %d)", ACCURATE_FROM, status_every)

    def took(self, address: str, elapsed_s: float, count: int = 1) -> None:
        """So many messages went to this address, and took so long."""
        for name in (address, AGGREGATE):
            taken = self._taken_s.get(name)
            if taken is None:
                continue
            taken += [elapsed_s] * count
            while len(taken) >= self._every:
                log.info("%s", status_line(name, taken[: self._every]))
                del taken[: self._every]


def status_line(name: str, taken_s: list[float]) -> str:
    ordered_ms = [each * 1000 for each in sorted(taken_s)]
    mean_ms = sum(ordered_ms) / len(ordered_ms)
    p99, p95 = (_percentile(ordered_ms, share) for share in (0.99, 0.95))
    return (
        f"[{name}]: finished {len(ordered_ms)} - 99th: {p99:.2f}ms - 95th: {p95:.2f}ms"
        f" - avg: {mean_ms:.2f}ms"
    )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
