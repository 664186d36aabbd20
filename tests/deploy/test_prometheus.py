"""A real Prometheus scrapes nsqd, nsqlookupd and nsqadmin; every query of the dashboard runs."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.generate import ROOT
from deploy.monitoring.alerts import ALERTS
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.nsqadmin_process import NsqadminProcess
from tests.kit.ports import HeldPort

TIMEOUT_S = 60.0
POLL_S = 0.1
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("prometheus"),
        reason="prometheus was not found (Debian: apt install prometheus)",
    ),
]


class Prometheus:
    """A context manager: one that scrapes these addresses, by job."""

    def __init__(self, directory: Path, jobs: dict[str, str]) -> None:
        self._directory = directory
        self._port = HeldPort()
        shutil.copy(ROOT / "deploy/monitoring/alerts.yaml", directory)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [address]}]}
                for job, address in jobs.items()
            ],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def __enter__(self) -> "Prometheus":
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._directory}/prometheus.yml",
                    f"--storage.tsdb.path={self._directory}/data",
                    f"--web.listen-address=127.0.0.1:{self._port.number}",
                ],
                stderr=log,
                stdout=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port.number}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return json.load(reply)["data"]

    def wait_for(self, query: str, count: int) -> None:
        """Until a query has that many results."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = self.get("/api/v1/query", query=query)["result"]
            except OSError:  # it starts
                found = []
            if len(found) >= count:
                return
            assert time.monotonic() < deadline, (query, (self._directory / "log").read_text())
            time.sleep(POLL_S)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    with (
        Nsqlookupd(directory / "nsqlookupd.log") as lookupd,
        Nsqd(directory / "data", [f"--lookupd-tcp-address={lookupd.tcp_address}"]) as nsqd,
        NsqadminProcess(
            directory / "nsqadmin.log", f"--lookupd-http-address={lookupd.http_address}"
        ) as nsqadmin,
    ):
        nsqd.http("POST", "/topic/create?topic=orders")
        nsqd.http("POST", "/channel/create?topic=orders&channel=billing")
        nsqd.http("POST", "/hold/create?topic=orders&hold=reader", b"{}")
        nsqd.http("POST", "/pub?topic=orders", b"hello")
        jobs = {
            "nsqd": nsqd.http_address,
            "nsqlookupd": lookupd.http_address,
            "nsqadmin": nsqadmin.http_address,
        }
        with Prometheus(directory, jobs) as started:
            started.wait_for("up == 1", 3)
            started.wait_for("nsqadmin_nodes == 1", 1)
            started.wait_for("count_over_time(nsqd_healthy[1m]) >= 3", 1)  # for rates
            yield started


def test_all_three_daemons_are_scraped(prometheus: Prometheus) -> None:
    depths = prometheus.get("/api/v1/query", query="nsqd_channel_depth")["result"]
    assert [(each["metric"]["topic"], each["value"][1]) for each in depths] == [("orders", "1")]
    assert prometheus.get("/api/v1/query", query="nsqlookupd_nodes")["result"]


def test_all_alert_rules_are_evaluated_without_an_error(prometheus: Prometheus) -> None:
    prometheus.wait_for('prometheus_rule_group_iterations_total or up{job="nsqd"}', 1)
    [group] = prometheus.get("/api/v1/rules")["groups"]
    assert len(group["rules"]) == len(ALERTS)
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}


def panels() -> Iterator[tuple[str, str]]:
    board = json.loads((ROOT / "deploy/monitoring/grafana-dashboard.json").read_text())
    heading = ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            heading = panel["title"]
        else:
            yield f"{heading}: {panel['title']}", panel["targets"][0]["expr"]


# These have a series only when something went wrong, or a client made a mistake.
MAY_BE_EMPTY = {"Nodes: Errors of clients"}


@pytest.mark.parametrize(("title", "expr"), list(panels()), ids=lambda each: str(each)[:40])
def test_every_panel_of_the_dashboard_has_data(
    prometheus: Prometheus, title: str, expr: str
) -> None:
    for name in ("instance", "topic", "channel"):
        expr = expr.replace(f"${name}", ".*")
    result = prometheus.get("/api/v1/query", query=expr)["result"]
    assert result or title in MAY_BE_EMPTY
