"""How long messages take from publish to FIN, in a window of time, if percentiles are configured.

A FIN names offsets. Their batches know the publish times, and are at hand at delivery. So a channel
notes the publish time of each span that it delivers, and looks it up at FIN. Deliveries go up the
log: the notes are a sorted list, one entry a batch; a FIN of many messages costs as much as one.
Messages delivered out of order (after a restart or a rewind) are noted one by one.

Samples go to one of two histograms, each for half of the window, which take turns; results are of
both. Notes are bounded: a channel that delivers 65,536 batches beyond its oldest unfinished message
forgets the older half of them, and takes no samples of those.
"""

from bisect import bisect_right
from collections.abc import Iterable

from pumpline.core.messages.spans import Span
from pumpline.core.text.histogram import Histogram
from pumpline.nsqd.options import Options

NOTES_MAX = 65_536
_NOTES_MIN = 1024  # below this it is not worth to look for what can be forgotten


class Latency:
    __slots__ = (
        "_current",
        "_ends",
        "_half_ns",
        "_look_at",
        "_odd",
        "_previous",
        "_starts",
        "_times_ns",
        "_until_ns",
    )

    def __init__(self, window_ns: int) -> None:
        self._half_ns = max(window_ns // 2, 1)
        self._until_ns = 0  # when the current half is over, by the steady clock
        self._current = Histogram()
        self._previous = Histogram()
        self._starts: list[int] = []  # the notes, in three columns
        self._ends: list[int] = []
        self._times_ns: list[int] = []
        self._odd: dict[int, int] = {}  # offset -> publish time, of messages delivered out of order
        self._look_at = _NOTES_MIN

    def delivered(self, start: int, end: int, published_ns: int) -> None:
        """[start, end), of one batch, is delivered."""
        ends = self._ends
        if (
            not ends
            or start > ends[-1]
            or (start == ends[-1] and published_ns != self._times_ns[-1])
        ):
            self._starts.append(start)
            ends.append(end)
            self._times_ns.append(published_ns)
        elif start == ends[-1]:
            ends[-1] = end
        elif not self._knows(start, end) and len(self._odd) < NOTES_MAX:
            self._odd.update(dict.fromkeys(range(start, end), published_ns))

    def finished(self, spans: Iterable[Span], *, low: int, wall_ns: int, steady_ns: int) -> None:
        """`spans` are finished, and so is everything below `low`."""
        self._turn(steady_ns)
        for start, end in spans:
            if self._odd:
                self._take_odd(start, end, wall_ns)
            index = max(bisect_right(self._starts, start) - 1, 0)
            while index < len(self._starts) and self._starts[index] < end:
                count = min(end, self._ends[index]) - max(start, self._starts[index])
                if count > 0:
                    self._current.record(wall_ns - self._times_ns[index], count)
                index += 1
        if len(self._starts) > self._look_at:
            self._forget(low)

    def histograms(self, steady_ns: int) -> list[Histogram]:
        """The samples of the window."""
        self._turn(steady_ns)
        return [self._current, self._previous]

    def _turn(self, steady_ns: int) -> None:
        """Begin the next half of the window, if it is time."""
        if steady_ns < self._until_ns:
            return
        whole = steady_ns >= self._until_ns + self._half_ns
        self._previous = Histogram() if whole else self._current
        self._current = Histogram()
        self._until_ns = steady_ns + self._half_ns if whole else self._until_ns + self._half_ns

    def _knows(self, start: int, end: int) -> bool:
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def _take_odd(self, start: int, end: int, wall_ns: int) -> None:
        for offset in range(start, end):
            published_ns = self._odd.pop(offset, None)
            if published_ns is not None:
                self._current.record(wall_ns - published_ns)

    def _forget(self, low: int) -> None:
        """Drop the notes that no FIN will ask for, and the oldest if there are too many."""
        drop = bisect_right(self._ends, low)
        if len(self._ends) - drop > NOTES_MAX:
            drop = len(self._ends) - NOTES_MAX // 2
        del self._starts[:drop], self._ends[:drop], self._times_ns[:drop]
        for offset in [each for each in self._odd if each < low]:
            del self._odd[offset]
        self._look_at = max(2 * len(self._ends), _NOTES_MIN)


def new_latency(options: Options) -> Latency | None:
    if not options.e2e_processing_latency_percentile:
        return None
    return Latency(options.e2e_processing_latency_window_time_ns)
