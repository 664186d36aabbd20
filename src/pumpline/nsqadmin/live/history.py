"""The last hour of figures, in memory: one value every ten seconds, 360 of each series.

A series is an array of 4-byte floats that is written in a circle, so it costs 1.5 KB whatever it
holds. A step in which nothing is known is a gap, not a zero. Pure: time is an argument.
"""

from array import array
from collections.abc import Iterable, Mapping
from math import isnan, nan

STEP_S = 10
STEPS = 360
SPARK_STEPS = 60  # ten minutes
STEP_MS = STEP_S * 1000

_EMPTY = array("f", [nan]) * STEPS


def step_of(now_s: float) -> int:
    return int(now_s // STEP_S)


class Series:
    """Steps up to `newest`, the last of which may be written several times."""

    __slots__ = ("_values", "newest")

    def __init__(self) -> None:
        self._values = array("f", _EMPTY)
        self.newest = -STEPS

    def put(self, step: int, value: float | None) -> None:
        if step < self.newest:
            return  # the clock went back
        skipped = step - self.newest - 1
        if skipped >= STEPS:
            self._values = array("f", _EMPTY)
        else:
            for missing in range(self.newest + 1, step):
                self._values[missing % STEPS] = nan
        self._values[step % STEPS] = nan if value is None else value
        self.newest = step

    def at(self, step: int) -> float | None:
        if not self.newest - STEPS < step <= self.newest:
            return None
        value = self._values[step % STEPS]
        return None if isnan(value) else value

    def last(self, step: int, count: int) -> list[float | None]:
        """The values of `count` steps up to that one, rounded to what a chart can show."""
        return [_shown(self.at(each)) for each in range(step - count + 1, step + 1)]

    def known(self, step: int, count: int) -> list[float | None]:
        """The same, without the gap before the first that is known."""
        values = self.last(step, count)
        first = next((at for at, value in enumerate(values) if value is not None), len(values))
        return values[first:]


class HourHistory:
    """Several series of one thing, by name."""

    __slots__ = ("series",)

    def __init__(self, names: Iterable[str]) -> None:
        self.series = {name: Series() for name in names}

    def put(self, step: int, values: Mapping[str, float | None]) -> None:
        for name, series in self.series.items():
            series.put(step, values[name])

    def last(self, step: int, count: int = STEPS) -> dict[str, list[float | None]]:
        """All series, without the steps before the first that any of them knows."""
        found = {name: series.last(step, count) for name, series in self.series.items()}
        columns = list(zip(*found.values(), strict=True))
        first = next((at for at, each in enumerate(columns) if any(v is not None for v in each)), 0)
        return {name: values[first:] for name, values in found.items()}


def _shown(value: float | None) -> float | None:
    """A 4-byte float has 7 digits; more of them would be noise, and bytes."""
    if value is None:
        return None
    return float(f"{value:.4g}") if value < 1000 else float(f"{value:.7g}")
