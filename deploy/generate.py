"""Writes what is made from tables of the code: `make generated`. A test compares."""

from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.monitoring.alerts import alerts_yaml
from deploy.monitoring.dashboard import dashboard_json
from deploy.python_api import python_api_page
from deploy.reference import flags_page, metrics_page

ROOT = Path(__file__).resolve().parents[1]
FILES: Mapping[str, Callable[[], str]] = {
    "deploy/monitoring/alerts.yaml": alerts_yaml,
    "deploy/monitoring/grafana-dashboard.json": dashboard_json,
    "docs/flags.md": flags_page,
    "docs/all-metrics.md": metrics_page,
    "docs/python-api.md": python_api_page,
}


def main() -> None:
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
        print(name)


if __name__ == "__main__":
    main()
