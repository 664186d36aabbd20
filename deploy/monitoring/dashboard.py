"""The Grafana dashboard. `make generated` writes it to grafana-dashboard.json.

A row of the table is a panel; panels stand three in a line, below the heading of their section.
"""

import json
from typing import Any, NamedTuple

from deploy.monitoring.known_metrics import check

COLUMNS = 24  # of Grafana's grid
PANEL_COLUMNS = 8
PANEL_ROWS = 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODE = 'instance=~"$instance"'
TOPIC = f'{NODE},topic=~"$topic"'
CHANNEL = f'{TOPIC},channel=~"$channel"'


class Panel(NamedTuple):
    title: str
    expr: str
    legend: str
    unit: str = "short"


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel("Published", f"sum(rate(nsqd_topic_messages_total{{{TOPIC}}}[1m]))", "in", "cps"),
        Panel("Waiting", f"sum(nsqd_channel_depth{{{CHANNEL}}})", "messages"),
        Panel("Longest lag", f"max(nsqd_channel_lag_seconds{{{CHANNEL}}})", "lag", "s"),
        Panel("Healthy nsqds", f"sum(nsqd_healthy{{{NODE}}})", "nsqds"),
    ),
    "Topics": (
        Panel(
            "Published by topic",
            f"sum by (topic) (rate(nsqd_topic_messages_total{{{TOPIC}}}[1m]))",
            "{{topic}}",
            "cps",
        ),
        Panel(
            "Bytes published by topic",
            f"sum by (topic) (rate(nsqd_topic_message_bytes_total{{{TOPIC}}}[1m]))",
            "{{topic}}",
            "Bps",
        ),
        Panel(
            "Size of the logs",
            f"sum by (topic) (nsqd_topic_log_bytes{{{TOPIC}}})",
            "{{topic}}",
            "bytes",
        ),
    ),
    "Channels": (
        Panel(
            "Waiting",
            f"sum by (topic, channel) (nsqd_channel_depth{{{CHANNEL}}})",
            "{{topic}} / {{channel}}",
        ),
        Panel(
            "Lag",
            f"max by (topic, channel) (nsqd_channel_lag_seconds{{{CHANNEL}}})",
            "{{topic}} / {{channel}}",
            "s",
        ),
        Panel(
            "In flight",
            f"sum by (topic, channel) (nsqd_channel_in_flight{{{CHANNEL}}})",
            "{{topic}} / {{channel}}",
        ),
        Panel(
            "Deferred",
            f"sum by (topic, channel) (nsqd_channel_deferred{{{CHANNEL}}})",
            "{{topic}} / {{channel}}",
        ),
        Panel(
            "Requeued",
            f"sum by (topic, channel) (rate(nsqd_channel_requeues_total{{{CHANNEL}}}[5m]))",
            "{{topic}} / {{channel}}",
            "cps",
        ),
        Panel(
            "Timed out",
            f"sum by (topic, channel) (rate(nsqd_channel_timeouts_total{{{CHANNEL}}}[5m]))",
            "{{topic}} / {{channel}}",
            "cps",
        ),
        Panel(
            "Consumers",
            f"sum by (topic, channel) (nsqd_channel_consumers{{{CHANNEL}}})",
            "{{topic}} / {{channel}}",
        ),
        Panel(
            "Dead letters",
            f"sum by (topic, channel) (increase(nsqd_channel_dead_letters_total{{{CHANNEL}}}[5m]))",
            "{{topic}} / {{channel}}",
        ),
        Panel(
            "Lag of holds",
            f"max by (topic, hold) (nsqd_hold_lag_seconds{{{TOPIC}}})",
            "{{topic}} / {{hold}}",
            "s",
        ),
        Panel(
            "Pinned by holds",
            f"sum by (topic, hold) (nsqd_hold_pinned_bytes{{{TOPIC}}})",
            "{{topic}} / {{hold}}",
            "bytes",
        ),
        Panel(
            "Dropped or expired",
            "sum by (topic, channel)"
            f" (increase(nsqd_channel_dropped_messages_total{{{CHANNEL}}}[5m])"
            f" + increase(nsqd_channel_expired_messages_total{{{CHANNEL}}}[5m]))",
            "{{topic}} / {{channel}}",
        ),
    ),
    "Nodes": (
        Panel("Disk free", f"nsqd_disk_free_ratio{{{NODE}}}", "{{instance}}", "percentunit"),
        Panel(
            "fsync, 99 %",
            f"histogram_quantile(0.99, sum by (le, instance)"
            f" (rate(nsqd_fsync_seconds_bucket{{{NODE}}}[5m])))",
            "{{instance}}",
            "s",
        ),
        Panel(
            "Event loop, longest delay",
            f"nsqd_event_loop_delay_max_seconds{{{NODE}}}",
            "{{instance}}",
            "s",
        ),
        Panel(
            "CPU", f"rate(process_cpu_seconds_total{{{NODE}}}[1m])", "{{instance}}", "percentunit"
        ),
        Panel("Memory", f"process_resident_memory_bytes{{{NODE}}}", "{{instance}}", "bytes"),
        Panel("TCP clients", f"nsqd_connections{{{NODE}}}", "{{instance}}"),
        Panel(
            "Write failures",
            f"increase(nsqd_write_failures_total{{{NODE}}}[5m])",
            "{{instance}}",
        ),
        Panel(
            "HTTP replies",
            f"sum by (status) (rate(nsqd_http_replies_total{{{NODE}}}[1m]))",
            "{{status}}",
            "cps",
        ),
        Panel(
            "Errors of clients",
            f"sum by (code) (rate(nsqd_client_errors_total{{{NODE}}}[5m]))",
            "{{code}}",
            "cps",
        ),
    ),
    "Discovery": (
        Panel("Nodes known to nsqlookupd", "nsqlookupd_nodes", "{{instance}}"),
        Panel("Lost nodes", "nsqlookupd_lost_nodes + nsqlookupd_silent_nodes", "{{instance}}"),
        Panel("What nsqadmin says needs a look", "nsqadmin_troubles", "{{instance}}"),
    ),
}
VARIABLES = (
    ("instance", "label_values(nsqd_healthy, instance)"),
    ("topic", "label_values(nsqd_topic_depth, topic)"),
    ("channel", 'label_values(nsqd_channel_depth{topic=~"$topic"}, channel)'),
)


def dashboard_json() -> str:
    panels = list(placed())
    check(panel["targets"][0]["expr"] for panel in panels if panel["type"] != "row")
    check(query for _, query in VARIABLES)
    board = {
        "uid": "pumpline",
        "title": "pumpline",
        "tags": ["nsq", "pumpline"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [datasource_variable(), *map(variable, VARIABLES)]},
        "panels": panels,
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def placed() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for heading, section in SECTIONS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }
        )
        y += 1
        for index, panel in enumerate(section):
            line, column = divmod(index, COLUMNS // PANEL_COLUMNS)
            where = {
                "x": column * PANEL_COLUMNS,
                "y": y + line * PANEL_ROWS,
                "w": PANEL_COLUMNS,
                "h": PANEL_ROWS,
            }
            panels.append(shown(panel, len(panels) + 1, where))
        y += -(-len(section) * PANEL_COLUMNS // COLUMNS) * PANEL_ROWS
    return panels


def shown(panel: Panel, number: int, where: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "A",
                "datasource": DATASOURCE,
                "expr": panel.expr,
                "legendFormat": panel.legend,
            }
        ],
    }


def datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"}


def variable(named: tuple[str, str]) -> dict[str, Any]:
    name, query = named
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
