"""Figures in the two text forms that Prometheus scrapes: its own (0.0.4) and OpenMetrics (1.0.0).

| kind      | samples of a family `name`                                        |
|-----------|-------------------------------------------------------------------|
| gauge     | `name{labels} value`                                              |
| counter   | `name_total{labels} value`                                        |
| histogram | `name_bucket{labels,le="bound"}`, `name_sum`, `name_count`        |

Samples are alike in both forms; what is said about a family differs in a counter's name, and
OpenMetrics ends with a line of its own.

By hand, as one scrape of 10,000 topics has 200,000 samples: prometheus_client takes 12 us for each,
this takes 0.5, since whoever adds them renders the labels once for all families of a topic. Its
parsers are what the tests read the result with.

Knows no topics; what to expose, and when to pause meanwhile, is the caller's affair.
"""

import math
from collections.abc import Iterator

import msgspec

from pumpline.core.text.histogram import Buckets
from pumpline.web.replies import Reply
from pumpline.web.yielding import Pace

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"

PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF\n"

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(msgspec.Struct, frozen=True, eq=False):
    """Equal to itself alone, so that looking up its samples costs least."""

    name: str  # a counter's without `_total`
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()  # the names of them; for the documentation

    @property
    def shown_name(self) -> str:
        """What samples of a gauge or a counter are called."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


def labels(**values: str) -> str:
    """A set of labels, ready to be part of a sample."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.translate(_ESCAPES).encode("utf-8", "replace").decode()


class Exposition:
    """Families appear in the order of their first sample."""

    def __init__(self) -> None:
        self._samples: dict[Family, bytearray] = {}

    def add(self, family: Family, value: float, labels: str = "") -> None:
        lines = self._samples.get(family)
        if lines is None:
            lines = self._samples[family] = bytearray()
        name = family.name if family.kind == GAUGE else f"{family.name}_total"
        shown = f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
        lines += shown.encode()

    def add_histogram(self, family: Family, buckets: Buckets) -> None:
        lines = self._samples.setdefault(family, bytearray())
        count = 0
        for bound, count in buckets.cumulative():
            shown = "+Inf" if bound == math.inf else repr(float(bound))
            lines += f'{family.name}_bucket{{le="{shown}"}} {count}\n'.encode()
        lines += f"{family.name}_sum {buckets.total}\n{family.name}_count {count}\n".encode()

    async def reply(self, accept: str) -> Reply:
        """All of it, in the form that the `Accept` header asks for."""
        pace = Pace()
        openmetrics = _OPENMETRICS in accept
        body = bytearray()
        for piece in self.pieces(openmetrics=openmetrics):
            body += piece
            await pace.breathe()
        kind = OPENMETRICS_TYPE if openmetrics else PLAIN_TYPE
        return Reply(body=bytes(body), headers={"Content-Type": kind})

    def pieces(self, *, openmetrics: bool) -> Iterator[bytes | bytearray]:
        for family, lines in self._samples.items():
            total = "_total" if family.kind == COUNTER and not openmetrics else ""
            name = family.name + total
            yield f"# HELP {name} {family.meaning}\n# TYPE {name} {family.kind}\n".encode()
            yield lines
        if openmetrics:
            yield _END
