"""What is made from tables of the code is up to date, and Prometheus takes it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from deploy.generate import FILES, ROOT
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.known_metrics import FAMILIES, check
from pumpline.web.prometheus_text import GAUGE

RULES = ROOT / "deploy/monitoring/alerts.yaml"
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool was not found (Debian: apt install prometheus)"
)


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_what_make_generated_writes(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name](), "run `make generated`"


def test_a_metric_that_no_daemon_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such metric: nsqd_channel_depht"):
        check(["sum(nsqd_channel_depht) + nsqd_healthy"])
    with pytest.raises(ValueError, match="no such metric: nsqd_topic_messages in"):
        check(["nsqd_topic_messages"])  # a counter without _total


def test_alerts_lead_to_sections_of_the_runbook() -> None:
    """Read from the file that Prometheus gets: page and anchor of each `runbook_url` exist."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    assert len(group["rules"]) == len(ALERTS)
    for rule in group["rules"]:
        page, anchor = rule["annotations"]["runbook_url"].split("#")
        lines = (ROOT / page).read_text().splitlines()
        headings = {
            line.strip("# ").lower().replace(" ", "-") for line in lines if line.startswith("#")
        }
        assert anchor in headings, rule["alert"]


def test_the_address_of_published_docs_can_be_given() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from deploy.monitoring.alerts import *; print(alerts_yaml())"],
        env={**os.environ, "DOCS_URL": "https://docs.example/pumpline"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "runbook_url: https://docs.example/pumpline/operating.md#a-node-is-lost" in done.stdout


def test_no_gauge_is_named_like_a_part_of_a_summary_or_histogram() -> None:
    for families in FAMILIES.values():
        for family in families:
            if family.kind == GAUGE:
                assert not {"quantile", "le"} & set(family.labels), family.name
                assert not family.name.endswith(("_sum", "_count", "_bucket", "_total"))


@needs_promtool
def test_prometheus_takes_the_alert_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", RULES.with_name("alerts_test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((ROOT / "deploy/monitoring/grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
