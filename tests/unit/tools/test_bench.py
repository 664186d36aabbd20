"""`pumpline bench`: it measures an nsqd in a topic of its own, and leaves nothing behind."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from pumpline.cluster.client import ClusterClient
from pumpline.cluster.options import ClusterOptions
from pumpline.testing import LocalNsqd
from pumpline.tools.bench import server_cpu
from tests.kit.daemons import wait_until
from tests.kit.tools.verbs import Pumpline

SHORT = ("--duration=50ms", "--messages=500", "--batch=50")


def topics(nsqd: LocalNsqd) -> list[str]:
    found = json.loads(nsqd.get("/stats?format=json"))["topics"]
    return [each["topic_name"] for each in found]


def test_rates_latencies_and_cpu_are_printed(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b"mine")
    said = pumpline("bench", *SHORT)
    assert (said.code, said.err) == (0, "")
    rows = {row["test"]: row for row in said.json()}
    assert list(rows) == [
        "publish, batches",
        "consume",
        "publish, one by one",
        "publish to consumer",
    ]
    for name, row in rows.items():
        assert 0 < row["messages"] <= 550, name
        assert row["rate"] > 0
        assert row["server_cpu_us"] is not None
        if name != "consume":
            assert 0 < row["latency_ms_p50"] <= row["latency_ms_p99"] <= row["latency_ms_p100"]
    assert topics(nsqd) == ["orders"]
    assert nsqd.stats("orders")["depth"] == 1
    table = pumpline("bench", *SHORT, "--table")
    assert len(table.words) == 4
    assert "messages/s" in table.out


def test_a_topic_that_exists_is_not_touched(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    nsqd.publish("orders", b"mine")
    said = pumpline("bench", *SHORT, "--topic", "orders")
    assert (said.code, said.out) == (1, "")
    assert f"nsqd {nsqd.http_address} has a topic orders: bench needs one of its own" in said.err
    assert nsqd.stats("orders")["depth"] == 1
    assert nsqd.stats("orders")["message_count"] == 1


def test_ctrl_c_leaves_nothing_behind(nsqd: LocalNsqd) -> None:
    command = [sys.executable, "-m", "pumpline.tools.pumpline", "bench", "--duration=60s"]
    command += ["--nsqd", nsqd.http_address, "--topic=measured"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: "measured" in topics(nsqd) and nsqd.stats("measured")["message_count"])
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert topics(nsqd) == []


@pytest.mark.parametrize("flag", ["--duration=0s", "--messages=0", "--size=-1", "--topic=a b"])
def test_what_makes_no_sense_is_a_usage_error(
    nsqd: LocalNsqd, pumpline: Pumpline, flag: str
) -> None:
    assert pumpline("bench", flag).code == 2
    assert topics(nsqd) == []


def test_a_refusal_is_named_and_leaves_nothing(pumpline: Pumpline) -> None:
    with LocalNsqd("--max-msg-size=100") as nsqd:
        said = pumpline("bench", *SHORT, "--nsqd", nsqd.http_address)
        assert (said.code, said.out) == (1, "")
        assert nsqd.http_address in said.err
        assert "E_BAD_MESSAGE" in said.err or "MESSAGE" in said.err
        assert topics(nsqd) == []


def test_cpu_time_of_an_nsqd_without_metrics_is_that_of_its_process(
    nsqd: LocalNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stock nsqd on this machine; this one runs in a thread of the test."""
    with ClusterClient(ClusterOptions(nsqd=[nsqd.http_address])) as cluster:
        node = cluster.new_node(nsqd.http_address)
        monkeypatch.setattr(server_cpu, "_METRIC", re.compile(b"no such metric"))
        clock = server_cpu.cpu_clock(node, "t", nsqd.tcp_address)
        before_s = clock()
        assert before_s is not None
        assert before_s <= time.process_time() + 0.1
        elsewhere = server_cpu.cpu_clock(node, "t", "192.0.2.1:4150")
        assert elsewhere() is None
