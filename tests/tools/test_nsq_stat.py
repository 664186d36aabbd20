"""nsq_stat: rows as recorded from NSQ 1.3.0's tool, its faults mended, and our flags."""

import json
import re
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool, last_line, ours, run_tool

HEADER = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
"""
# Recorded: ten messages, all finished; and two messages that wait.
FINISHED = (
    "      0       0 |       0       0       0     0     0 |       0       0           10       0\n"
)
FAST = "--interval=10ms"


def prepare(nsqd: Nsqd, topic: str, *channels: str, count: int = 10) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    for channel in channels:
        nsqd.http("POST", f"/channel/create?topic={topic}&channel={channel}")
    with nsqd.connect() as client:
        client.mpub(topic, [b"%d" % number for number in range(count)])


def stat(nsqd: Nsqd, topic: str, *flags: str) -> list[str]:
    address = f"--nsqd-http-address={nsqd.http_address}"
    done = run_tool("nsq_stat", f"--topic={topic}", address, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines(keepends=True)


def test_a_row_is_that_of_nsqs_tool(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, "c")
    with nsqd.connect() as client:
        client.sub(topic, "c")
        client.rdy(10)
        for _ in range(10):
            client.fin(client.read_message().id)
        wait_until(lambda: not nsqd.channel_stats(topic, "c")["in_flight_count"])
    wait_until(lambda: not nsqd.channel_stats(topic, "c")["client_count"])
    printed = stat(nsqd, topic, "--channel=c", FAST, "--count=2")
    assert "".join(printed) == HEADER + 2 * FINISHED


def test_the_header_comes_again_every_25_rows(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, "c")
    printed = stat(nsqd, topic, "--channel=c", FAST, "--count=51")
    heads = [at for at, line in enumerate(printed) if line.startswith("---")]
    assert heads == [0, 26, 53]  # recorded
    assert len(printed) == 51 + 3 * 2


def test_rates_are_what_came_and_went_in_an_interval(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    prepare(nsqd, topic, "c", count=1)
    address = f"--nsqd-http-address={nsqd.http_address}"
    flags = (f"--topic={topic}", "--channel=c", "--interval=300ms", address)
    with RunningTool("nsq_stat", *flags, directory=tmp_path) as tool:
        wait_until(lambda: tool.stdout.count(b"\n") > 2)
        prepare(nsqd, topic, count=300)
        row = wait_until(lambda: re.search(rb"^ *([1-9]\d*) +0 \|", tool.stdout, re.MULTILINE))
        assert tool.stop() == 0
    assert int(row[1]) <= 1000


@pytest.mark.deviation
def test_json_lines_have_names_and_lag(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, "a", "b", count=3)
    lines = stat(nsqd, topic, "--all-channels", "--json", FAST, "--count=1")
    found = {row["channel"]: row for row in map(json.loads, lines)}
    assert found.keys() == {"a", "b"}
    row = found["a"]
    assert (row["topic"], row["depth"], row["messages"]) == (topic, 3, 3)
    assert row["nodes"] == [nsqd.http_address]
    assert row["lag_seconds"] >= 0


@pytest.mark.deviation
def test_several_channels_are_named(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, "a", "b")
    printed = stat(nsqd, topic, "--channel=b", "--channel=a", FAST, "--count=1")
    assert [line.rsplit(" ", 1)[1] for line in printed[1:]] == ["channel\n", "b\n", "a\n"]


@pytest.mark.deviation
def test_it_goes_on_when_a_node_fails_or_all_do(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    prepare(nsqd, topic, "c", count=3)
    prepare(own_nsqd, topic, "c", count=4)
    nodes = [f"--nsqd-http-address={each.http_address}" for each in (nsqd, own_nsqd)]
    flags = (f"--topic={topic}", "--channel=c", "--interval=20ms", *nodes)
    with RunningTool("nsq_stat", *flags, directory=tmp_path) as tool:
        wait_until(lambda: depths(tool)[-1:] == [7])
        own_nsqd.kill()
        wait_until(lambda: depths(tool)[-1] == 3)
        assert f"failed to get nsqd stats - {own_nsqd.http_address}: " in tool.stderr
        own_nsqd.start()
        wait_until(lambda: depths(tool)[-1] == 7)
        assert b"-" not in b"".join(re.findall(rb"^ .*$", tool.stdout, re.MULTILINE))
        assert tool.stop() == 0


def depths(tool: RunningTool) -> list[int]:
    return [int(each) for each in re.findall(rb"^ .{14} \| +(\d+) ", tool.stdout, re.MULTILINE)]


NSQD = "--nsqd-http-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--topic and --channel are required"),
        ("--topic=t", "--topic and --channel are required"),
        ("--topic=t --channel=c", "--nsqd-http-address or --lookupd-http-address required"),
        (
            f"--topic=t --channel=c {NSQD} --lookupd-http-address=127.0.0.1:1",
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (f"--topic=t --channel=c {NSQD} --interval=0s", "--interval should be positive"),
        (f"--topic=t --channel=c {NSQD} --count=0", "--count should be positive"),
        ours(
            f"--topic=t --channel=c {NSQD}",
            "ERROR: failed to get nsqd stats - failed to query any nsqd: "
            "127.0.0.1:1: connection refused",
        ),
    ],
)
def test_flags_that_cannot_work_are_told(flags: str, said: str) -> None:
    done = run_tool("nsq_stat", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)


def test_a_channel_that_is_not_there_is_told_in_nsqs_words(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, "c")
    address = f"--nsqd-http-address={nsqd.http_address}"
    done = run_tool("nsq_stat", f"--topic={topic}", "--channel=c2", address)
    said = f"ERROR: failed to find channel(c2) in stats metadata for topic({topic})"
    assert (done.returncode, last_line(done.stderr)) == (1, said)


@pytest.mark.parametrize(
    ("count", "why"),
    [
        ("x", "invalid syntax"),
        ("1_0", "invalid syntax"),
        ("٣", "invalid syntax"),
        ("3000000000", "value out of range"),
    ],
)
def test_a_count_that_is_no_number_is_a_usage_error(count: str, why: str) -> None:
    done = run_tool("nsq_stat", f"--count={count}")
    text = f'invalid value "{count}" for flag -count: strconv.ParseInt: parsing "{count}": {why}\n'
    assert done.returncode == 2
    assert done.stderr.decode().startswith(text)
