"""How often messages of a topic were delivered again, by time: what nodes count, sampled.

A log has no redeliveries: they are counters of channels (requeues and timeouts), which a node keeps
since it started. They are asked for again and again; between two samples they are taken to have
grown evenly. A counter that went down is that of a node that was restarted. What happened before
the first sample is not known, and said to be so (None). Pure: knows numbers and times, not nodes.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

POINTS_MAX = 4096  # of a topic, while it changes: over an hour at one a second

Counts = Mapping[str, Mapping[str, int]]  # by topic, then by node and channel


@dataclass(slots=True)
class Redeliveries:
    """Totals of each topic at some points in time; those of a topic at rest are two points."""

    points: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    last: dict[str, dict[str, int]] = field(default_factory=dict)
    sampled_s: float | None = None

    def add(self, time_s: float, counts: Counts) -> None:
        """What all channels had counted at that time. Those left out are as they were."""
        for topic, by_channel in counts.items():
            before = self.last.setdefault(topic, {})
            points = self.points.setdefault(topic, [])
            if not points and self.sampled_s is not None:
                points.append((self.sampled_s, 0))  # it was not there yet
            total = points[-1][1] if points else 0
            is_first = self.sampled_s is None
            for channel, count in by_channel.items():
                known = before.get(channel, count if is_first else 0)
                total += count - known if count >= known else count
                before[channel] = count
            _extend(points, time_s, total)
        self.sampled_s = time_s

    def between(self, topic: str, start_s: float, end_s: float) -> int | None:
        """Redeliveries in [start_s, end_s); None unless it was watched from start to end."""
        points = self.points.get(topic)
        if not points or points[0][0] > start_s or points[-1][0] < end_s:
            return None
        # Rounded each by itself, so that windows side by side add up.
        return round(_total_at(points, end_s)) - round(_total_at(points, start_s))

    def so_far(self, topic: str, start_s: float, end_s: float) -> int | None:
        """The same of a window that may not be over."""
        points = self.points.get(topic)
        until_s = min(end_s, points[-1][0]) if points else end_s
        return self.between(topic, start_s, until_s) if until_s >= start_s else None

    def to_json(self) -> str:
        value = {"points": self.points, "last": self.last, "sampled_s": self.sampled_s}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Redeliveries":
        value = json.loads(text)
        points = {
            topic: [(float(at_s), int(total)) for at_s, total in found]
            for topic, found in value["points"].items()
        }
        return cls(points, value["last"], value["sampled_s"])


def _extend(points: list[tuple[float, int]], time_s: float, total: int) -> None:
    if points and points[-1][0] >= time_s:
        time_s = points[-1][0]  # the clock was set back
    if len(points) >= 2 and points[-1][1] == points[-2][1] == total:
        points[-1] = (time_s, total)
        return
    points.append((time_s, total))
    if len(points) > POINTS_MAX:
        del points[0]


def _total_at(points: list[tuple[float, int]], time_s: float) -> float:
    after = bisect_left(points, (time_s, -1))
    if after == 0 or points[after][0] == time_s:
        return points[after][1]
    (start_s, start), (end_s, end) = points[after - 1], points[after]
    return start + (end - start) * (time_s - start_s) / (end_s - start_s)
