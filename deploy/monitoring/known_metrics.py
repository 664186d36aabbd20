"""All metrics of the daemons, from the tables that they are made of."""

import re
from collections.abc import Iterable, Iterator

from pumpline.nsqadmin import metrics as nsqadmin
from pumpline.nsqd.stats import families as nsqd
from pumpline.nsqlookupd import metrics as nsqlookupd
from pumpline.web.process_metrics import PROCESS_FAMILIES, DaemonFamilies
from pumpline.web.prometheus_text import HISTOGRAM, Family

FAMILIES: dict[str, tuple[Family, ...]] = {
    "nsqd": (*nsqd.FAMILIES, *DaemonFamilies.of("nsqd")),
    "nsqlookupd": (*nsqlookupd.FAMILIES, *DaemonFamilies.of("nsqlookupd")),
    "nsqadmin": (*nsqadmin.FAMILIES, *DaemonFamilies.of("nsqadmin")),
    "every daemon": PROCESS_FAMILIES,
}
NAME = re.compile(r"\b(?:nsqd|nsqlookupd|nsqadmin|process)_[a-z0-9_]+\b")


def samples(family: Family) -> Iterator[str]:
    """The names that a query may use."""
    if family.kind == HISTOGRAM:
        yield from (f"{family.name}_{part}" for part in ("bucket", "sum", "count"))
    else:
        yield family.shown_name


KNOWN = {name for group in FAMILIES.values() for family in group for name in samples(family)}


def check(expressions: Iterable[str]) -> None:
    """ValueError for a metric that no daemon has."""
    for expression in expressions:
        if unknown := set(NAME.findall(expression)) - KNOWN:
            raise ValueError(f"no such metric: {', '.join(sorted(unknown))} in {expression}")
