"""Alert rules for Prometheus. `make generated` writes them to alerts.yaml.

`runbook_url` leads to a section of docs/operating.md; DOCS_URL in the environment says where a
published copy of docs is.
"""

import os
from typing import Any, NamedTuple

import yaml

from deploy.monitoring.known_metrics import check

DOCS_URL = os.environ.get("DOCS_URL", "docs")
RUNBOOK = f"{DOCS_URL}/operating.md"
HEAD = "# Made by `make generated` from deploy/monitoring/alerts.py: change it there.\n"


class Alert(NamedTuple):
    name: str
    expr: str
    lasts: str  # how long it must be so before anybody is called
    severity: str  # page: somebody gets up; warning: somebody looks in the morning
    summary: str
    section: str  # of the runbook


ALERTS = (
    Alert(
        "NsqdDown",
        'up{job="nsqd"} == 0',
        "1m",
        "page",
        "nsqd {{ $labels.instance }} does not answer",
        "a-node-is-lost",
    ),
    Alert(
        "NsqdLost",
        "nsqlookupd_lost_nodes + nsqlookupd_silent_nodes > 0",
        "5m",
        "page",
        "{{ $value }} nsqds that nsqlookupd {{ $labels.instance }} knows are away",
        "a-node-is-lost",
    ),
    Alert(
        "NsqlookupdDown",
        'up{job="nsqlookupd"} == 0',
        "5m",
        "warning",
        "nsqlookupd {{ $labels.instance }} does not answer: nobody finds new nsqds through it",
        "a-node-is-lost",
    ),
    Alert(
        "NsqdCannotWrite",
        "nsqd_healthy == 0",
        "1m",
        "page",
        "nsqd {{ $labels.instance }} cannot write: publishes are refused",
        "the-disk-is-full",
    ),
    Alert(
        "NsqdDiskFilling",
        "nsqd_disk_free_ratio < 0.15",
        "5m",
        "warning",
        "The disk of {{ $labels.instance }} is filling: under a tenth, history is deleted",
        "the-disk-is-full",
    ),
    Alert(
        "NsqdNobodyConsumes",
        "nsqd_channel_depth > 0 and nsqd_channel_consumers == 0",
        "10m",
        "warning",
        "{{ $labels.topic }} / {{ $labels.channel }} has messages and no consumer",
        "a-consumer-is-stuck",
    ),
    Alert(
        "NsqdBacklogGrows",
        "nsqd_channel_depth > 10000 and deriv(nsqd_channel_depth[30m]) > 0",
        "30m",
        "warning",
        "Consumers of {{ $labels.topic }} / {{ $labels.channel }} do not keep up",
        "a-consumer-is-stuck",
    ),
    Alert(
        "NsqdChannelLags",
        "nsqd_channel_lag_seconds > 600",
        "10m",
        "warning",
        "{{ $labels.topic }} / {{ $labels.channel }} is {{ $value | humanizeDuration }} behind",
        "a-channel-lags",
    ),
    Alert(
        "NsqdMessagesTimeOut",
        "rate(nsqd_channel_timeouts_total[10m]) > 0.05 * rate(nsqd_channel_messages_total[10m])",
        "10m",
        "warning",
        "Consumers of {{ $labels.topic }} / {{ $labels.channel }} hang, or the timeout is short",
        "a-consumer-is-stuck",
    ),
    Alert(
        "NsqdDeadLetters",
        "increase(nsqd_channel_dead_letters_total[10m]) > 0",
        "0m",
        "warning",
        "Messages of {{ $labels.topic }} / {{ $labels.channel }} failed too often",
        "a-consumer-is-stuck",
    ),
    Alert(
        "NsqdMessagesDropped",
        "increase(nsqd_channel_dropped_messages_total[10m]) > 0"
        " or increase(nsqd_channel_overflow_messages_total[10m]) > 0",
        "0m",
        "warning",
        "{{ $labels.topic }} / {{ $labels.channel }} dropped messages",
        "limits",
    ),
    Alert(
        "NsqdHoldPinsMuch",
        "nsqd_hold_pinned_bytes > 5e9",
        "30m",
        "warning",
        "Hold {{ $labels.hold }} of {{ $labels.topic }} pins the log: its reader has stopped",
        "the-disk-is-full",
    ),
    Alert(
        "NsqdClientsRefused",
        "increase(nsqd_refused_connections_total[10m]) > 0",
        "0m",
        "warning",
        "nsqd {{ $labels.instance }} refuses clients: --max-connections is reached",
        "limits",
    ),
    Alert(
        "NsqdLoopLate",
        "rate(nsqd_event_loop_delay_seconds_sum[5m])"
        " / rate(nsqd_event_loop_delay_seconds_count[5m]) > 0.05",
        "10m",
        "warning",
        "One core is not enough for {{ $labels.instance }}: spread topics over more nsqds",
        "sizing",
    ),
    Alert(
        "NsqdSlowDisk",
        "histogram_quantile(0.99, rate(nsqd_fsync_seconds_bucket[10m])) > 0.5",
        "10m",
        "warning",
        "fsyncs of {{ $labels.instance }} take over 0.5 s; with --sync-every=1, so does a publish",
        "sizing",
    ),
    Alert(
        "NsqdCheckpointsLate",
        "nsqd_checkpoint_age_seconds > 5",
        "1m",
        "warning",
        "A kill of {{ $labels.instance }} now would deliver over 5 s of messages again",
        "the-disk-is-full",
    ),
    Alert(
        "NsqdNotRegistered",
        "nsqd_lookupd_connected == 0",
        "5m",
        "warning",
        "nsqd {{ $labels.instance }} is not connected to nsqlookupd {{ $labels.address }}",
        "a-node-is-lost",
    ),
)


def rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "runbook_url": f"{RUNBOOK}#{alert.section}",
        },
    }


def alerts_yaml() -> str:
    check(alert.expr for alert in ALERTS)
    groups = {"groups": [{"name": "pumpline", "rules": [rule(each) for each in ALERTS]}]}
    shown: str = yaml.safe_dump(groups, sort_keys=False, width=100, allow_unicode=True)
    return HEAD + shown
