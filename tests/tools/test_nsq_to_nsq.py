"""nsq_to_nsq: what is published where, as recorded from NSQ 1.3.0's tool, and its faults mended."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool, last_line, ours, run_tool


def prepare(nsqd: Nsqd, topic: str, bodies: list[bytes]) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=nsq_to_nsq")
    with nsqd.connect() as client:
        client.mpub(topic, bodies)


def is_consumed(nsqd: Nsqd, topic: str) -> bool:
    channel = nsqd.channel_stats(topic, "nsq_to_nsq")
    return bool(channel) and not channel["depth"] and not channel["in_flight_count"]


def received(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with nsqd.connect() as client:
        client.sub(topic, "received")
        client.rdy(count + 1)
        return [client.read_message().body for _ in range(count)]


@contextmanager
def running(nsqd: Nsqd, topic: str, directory: Path, *flags: str) -> Iterator[RunningTool]:
    with RunningTool(
        "nsq_to_nsq",
        f"--topic={topic}",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        *flags,
        directory=directory,
    ) as tool:
        yield tool


OBJECT = b'{"b":12345678901234567890, "a":"x<y","c":[1,2]}'


@pytest.mark.parametrize(
    ("flags", "bodies", "passed"),
    [
        ("", [b"one", b"\0\1"], [b"one", b"\0\1"]),
        # NSQ's tool loses the integer's last digits, escapes < and sorts the fields.
        ours(
            "--whitelist-json-field=b --whitelist-json-field=a",
            [OBJECT, b"nope", b'{"a":1}', b"[1]", b"3"],
            [b'{"b":12345678901234567890,"a":"x<y"}', b'{"a":1}'],
        ),
        (
            "--require-json-field=a",
            [b'{"b":1}', b'{"a":null}', b'{"a":"v"}', b"zz"],
            [b'{"a":null}', b'{"a":"v"}'],
        ),
        (
            "--require-json-field=a --require-json-value=1",
            [b'{"b":1}', b'{"a":null}', b'{"a":true}', b'{"a":1}', b'{"a":1.0}', b'{"a":"1"}'],
            [b'{"a":1}', b'{"a":1.0}', b'{"a":"1"}'],
        ),
        (
            "--require-json-field=a --require-json-value=true",
            [b'{"a":true}', b'{"a":"true"}', b'{"a":false}'],
            [b'{"a":"true"}'],
        ),
    ],
)
def test_what_passes_is_published(
    nsqd: Nsqd, topic: str, tmp_path: Path, flags: str, bodies: list[bytes], passed: list[bytes]
) -> None:
    prepare(nsqd, topic, bodies)
    target = f"{topic}_copy"
    to = f"--destination-nsqd-tcp-address={nsqd.tcp_address}"
    with running(
        nsqd, topic, tmp_path, f"--destination-topic={target}", to, *flags.split()
    ) as tool:
        assert received(nsqd, target, len(passed)) == passed
        wait_until(lambda: is_consumed(nsqd, topic))
        assert tool.stop(signal.SIGINT) == 0
    assert nsqd.stats(target)["topics"][0]["message_count"] == len(passed)


def test_several_topics_go_to_topics_of_their_names(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}_other"
    prepare(nsqd, topic, [b"one"])
    prepare(nsqd, other, [b"two"])
    to = f"--destination-nsqd-tcp-address={own_nsqd.tcp_address}"
    with running(nsqd, topic, tmp_path, f"--topic={other}", to) as tool:
        assert received(own_nsqd, topic, 1) == [b"one"]
        assert received(own_nsqd, other, 1) == [b"two"]
        assert tool.stop() == 0


@pytest.mark.deviation
@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_every_mode_delivers_while_one_destination_is_down(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, tmp_path: Path, mode: str
) -> None:
    prepare(nsqd, topic, [b"%d" % number for number in range(100)])
    own_nsqd.kill()
    flags = [f"--destination-nsqd-tcp-address={each.tcp_address}" for each in (own_nsqd, nsqd)]
    target = f"{topic}_copy"
    with running(
        nsqd, topic, tmp_path, f"--mode={mode}", f"--destination-topic={target}", *flags
    ) as tool:
        assert len(received(nsqd, target, 100)) == 100
        wait_until(lambda: is_consumed(nsqd, topic))
        assert tool.stop() == 0


def test_a_destination_that_comes_back_gets_what_is_left(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    to = f"--destination-nsqd-tcp-address={own_nsqd.tcp_address}"
    opts = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")
    with running(nsqd, topic, tmp_path, to, *opts, "--consumer-opt=max_attempts,0") as tool:
        prepare(nsqd, topic, [b"one"])
        assert received(own_nsqd, topic, 1) == [b"one"]
        own_nsqd.kill()
        with nsqd.connect() as client:
            client.publish(topic, b"two")
        own_nsqd.start()
        wait_until(lambda: is_consumed(nsqd, topic))
        with own_nsqd.connect() as client:
            client.sub(topic, "received")
            client.rdy(10)
            while client.read_message().body != b"two":
                pass
        assert tool.stop() == 0


def test_status_lines_are_those_of_nsqs_tool(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    prepare(nsqd, topic, [b"%d" % number for number in range(200)])
    to = f"--destination-nsqd-tcp-address={nsqd.tcp_address}"
    with running(
        nsqd, topic, tmp_path, f"--destination-topic={topic}_copy", "--status-every=100", to
    ) as tool:
        tool.wait_for("[aggregate]: finished")
        assert tool.stop() == 0
    line = r"\[aggregate\]: finished 100 - 99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
    when = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"
    assert re.search(rf"^{when} {line}$", tool.stderr, re.MULTILINE), tool.stderr


NSQD = "--nsqd-tcp-address=127.0.0.1:1"
TO = "--destination-nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--topic and --channel are required"),
        ("--topic=t", "--nsqd-tcp-address or --lookupd-http-address required"),
        (f"--topic=t {NSQD}", "--destination-nsqd-tcp-address required"),
        (
            f"--topic=t {NSQD} {TO} --lookupd-http-address=127.0.0.1:1",
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (f"--topic=t! {NSQD} {TO}", "--topic is invalid"),
        (f"--topic=t {NSQD} {TO} --channel=!", "--channel is invalid"),
        (f"--topic=t {NSQD} {TO} --destination-topic=!", "--destination-topic is invalid"),
        (f"--topic=t {NSQD} {TO}", "dial tcp 127.0.0.1:1: connect: connection refused"),
        ours(
            f"--topic=t {NSQD} {TO} --mode=foo",  # NSQ's tool sends to all then
            "--mode should be one of round-robin, hostpool, epsilon-greedy",
        ),
        ours(
            f"--topic=t {NSQD} --tokens",
            "--tokens needs --destination-nsqd-http-address, of a pumpline nsqd",
        ),
    ],
)
def test_flags_that_cannot_work_are_told(flags: str, said: str) -> None:
    done = run_tool("nsq_to_nsq", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)
