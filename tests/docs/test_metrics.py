"""docs/metrics.md: its examples print what it says, and its names are those of the code."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpline.nsqd.stats import prometheus
from pumpline.web import process_metrics
from pumpline.web.prometheus_text import COUNTER, Family
from tests.kit.daemons import Nsqd
from tests.kit.pages import DOCS, Reader

PAGE = (DOCS / "metrics.md").read_text()
NAME = re.compile(r"\b(?:nsqd|process)_[a-z0-9_]+\b")


def families() -> Iterator[Family]:
    """Those that are always the same; a scrape has some more, made for any daemon."""
    for module in (prometheus, process_metrics):
        for value in vars(module).values():
            if isinstance(value, Family):
                yield value
            elif isinstance(value, tuple) and value and isinstance(value[-1], tuple):
                yield from (family for _, family in value)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with Nsqd(tmp_path_factory.mktemp("nsqd") / "data") as nsqd:
        nsqd.http("GET", "/ping")
        text = nsqd.http("GET", "/metrics")[1].decode()
    known = {each.name + ("_total" if each.kind == COUNTER else "") for each in families()}
    return known | set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))


def test_the_table_has_every_metric_and_no_other(exposed: set[str]) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    told = set(NAME.findall("\n".join(rows)))
    assert told == exposed


def test_alerts_are_about_metrics_that_exist(exposed: set[str]) -> None:
    [rules] = re.findall(r"## Alerts\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    used = set(NAME.findall(rules))
    assert len(used) >= 10
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in used} <= exposed


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("metrics.md") == 6
