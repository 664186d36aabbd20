"""to_nsq: what is published, as NSQ 1.3.0's tool does it, its faults mended, and our flags."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import command_of, last_line, run_tool


def received(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with nsqd.connect() as client:
        client.sub(topic, "received")
        client.rdy(count + 1)
        return [client.read_message().body for _ in range(count)]


def count_of(nsqd: Nsqd, topic: str) -> int:
    topics = nsqd.stats(topic)["topics"]
    return int(topics[0]["message_count"]) if topics else 0


@pytest.mark.parametrize(
    ("flags", "given", "published"),
    [
        ((), b"a\nbb\n\nccc\n", [b"a", b"bb", b"ccc"]),
        (("-delimiter=,",), b"a,bb\n,ccc,", [b"a", b"bb\n", b"ccc"]),
        # NSQ's tool publishes "cc": the last byte goes if there is no delimiter behind it.
        pytest.param((), b"a\nbb\n\nccc", [b"a", b"bb", b"ccc"], marks=pytest.mark.deviation),
        (("--rate=1000",), b"x\ny\n", [b"x", b"y"]),
    ],
)
def test_what_is_between_delimiters_is_a_message(
    nsqd: Nsqd, topic: str, flags: tuple[str, ...], given: bytes, published: list[bytes]
) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    done = run_tool("to_nsq", f"--topic={topic}", address, *flags, input=given)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert received(nsqd, topic, len(published)) == published
    assert count_of(nsqd, topic) == len(published)


@pytest.mark.deviation
def test_empty_input_is_no_error(nsqd: Nsqd, topic: str) -> None:
    done = run_tool("to_nsq", f"--topic={topic}", f"--nsqd-tcp-address={nsqd.tcp_address}")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.deviation
def test_each_nsqd_gets_all_messages_and_with_spread_one_of_them(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str
) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    both = [f"--nsqd-tcp-address={each.tcp_address}" for each in (nsqd, own_nsqd)]
    assert run_tool("to_nsq", f"--topic={topic}", *both, input=lines).returncode == 0
    assert count_of(nsqd, topic) == count_of(own_nsqd, topic) == 100_000
    other = f"{topic}_spread"
    assert run_tool("to_nsq", f"--topic={other}", "--spread", *both, input=lines).returncode == 0
    assert count_of(nsqd, other) + count_of(own_nsqd, other) == 100_000
    assert 0 < count_of(nsqd, other) < 100_000


@pytest.mark.deviation
def test_the_same_input_under_the_same_name_is_published_once(nsqd: Nsqd, topic: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(3_500))
    address = f"--nsqd-http-address={nsqd.http_address}"
    for _ in range(2):
        done = run_tool("to_nsq", f"--topic={topic}", "--token=import", address, input=lines)
        assert done.returncode == 0, done.stderr
    assert count_of(nsqd, topic) == 3_500
    run_tool("to_nsq", f"--topic={topic}", "--token=other", address, input=lines)
    assert count_of(nsqd, topic) == 7_000


def test_lines_are_published_as_they_come(nsqd: Nsqd, topic: str) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    with subprocess.Popen(
        [*command_of("to_nsq"), f"--topic={topic}", address], stdin=subprocess.PIPE
    ) as tool:
        assert tool.stdin is not None
        tool.stdin.write(b"one\n")
        tool.stdin.flush()
        wait_until(lambda: count_of(nsqd, topic) == 1)
        tool.terminate()
        assert tool.wait(60) == 0


def test_a_message_that_nsqd_refuses_ends_it(topic: str, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--max-msg-size=10"]) as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        done = run_tool("to_nsq", f"--topic={topic}", address, input=b"a" * 11 + b"\n")
        assert done.returncode == 1
        assert "E_BAD_MESSAGE" in last_line(done.stderr)


@pytest.mark.deviation
def test_a_terminal_shows_progress(nsqd: Nsqd, topic: str) -> None:
    ours, theirs = pty.openpty()
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    done = subprocess.run(
        [*command_of("to_nsq"), f"--topic={topic}", address],
        input=b"one\ntwo\n",
        stderr=theirs,
        timeout=60,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 1000)
    os.close(ours)
    assert done.returncode == 0
    assert b"\r2 messages, 0.0 MB, " in shown


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--topic required"),
        ("--topic=t", "--nsqd-tcp-address required"),
        ("--nsqd-tcp-address=127.0.0.1:1", "--topic required"),
        ("--topic=t --nsqd-tcp-address=a:1 --delimiter=ab", "--delimiter must be a single byte"),
        ("--topic=t --nsqd-tcp-address=a:1 --delimiter=", "--delimiter must be a single byte"),
        pytest.param(
            "--topic=t --token=x",
            "--token needs --nsqd-http-address, of a pumpline nsqd",
            marks=pytest.mark.deviation,
        ),
    ],
)
def test_flags_that_cannot_work_are_told(flags: str, said: str) -> None:
    done = run_tool("to_nsq", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)


def test_an_option_that_go_nsq_does_not_know_is_a_usage_error() -> None:
    done = run_tool("to_nsq", "--topic=t", "--producer-opt=x")
    assert done.returncode == 2
    text = b'invalid value "x" for flag -producer-opt: invalid option x\n'
    assert done.stderr.startswith(text)


@pytest.mark.deviation
def test_it_has_a_version() -> None:
    assert run_tool("to_nsq", "--version").stdout == b"to_nsq v1.3.0\n"
