"""stdin, stdout or stderr that is closed or cannot be written: told in a sentence, no abort."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import command_of, last_line
from tests.kit.ports import HeldPort

pytestmark = pytest.mark.deviation

PYTHON = (sys.executable, "-m")
TAIL = "nsq_tail --topic={topic} --channel=c -n=1 --nsqd-tcp-address={tcp}"
PEEK = "nsq_tail --topic={topic} --peek --nsqd-http-address={http}"
STAT = "nsq_stat --topic={topic} --channel=c --nsqd-http-address={http} --interval=10ms"
TOPICS = "pumpline topics --nsqd={http}"
WRITE = "ERROR: failed to write to os.Stdout - "


@pytest.mark.parametrize("command", [TAIL, PEEK, STAT])
@pytest.mark.parametrize(
    ("stdout", "why"),
    [("> /dev/full", "no space left on device"), (">&-", "bad file descriptor")],
)
def test_what_cannot_be_printed_is_told(
    nsqd: Nsqd, topic: str, command: str, stdout: str, why: str
) -> None:
    code, said = run(nsqd, topic, f"{command} {stdout}")
    assert (code, last_line(said.encode())) == (1, f"{WRITE}{why}"), said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("stdout", "why"),
    [("> /dev/full", "no space left on device"), (">&-", "bad file descriptor")],
)
def test_a_verb_tells_it_as_well(nsqd: Nsqd, topic: str, stdout: str, why: str) -> None:
    code, said = run(nsqd, topic, f"{TOPICS} {stdout}")
    assert (code, said) == (1, f"pumpline topics: failed to write to stdout: {why}\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("to_nsq --topic={topic} --nsqd-tcp-address={tcp} <&-", 0),
        ("pumpline pub {topic} --nsqd={http} <&-", 1),
        (f"{PEEK} 2>&-", 0),
        (f"{PEEK} <&- 2>&-", 0),
    ],
)
def test_input_that_is_closed_is_empty(nsqd: Nsqd, topic: str, command: str, code: int) -> None:
    assert run(nsqd, topic, command)[0] == code


@pytest.mark.parametrize(
    "command",
    [
        "to_nsq --topic={topic} --nsqd-tcp-address={tcp}",
        "pumpline pub {topic} --nsqd={http}",
        "pumpline pub {topic} --nsqd={http} --whole",
    ],
)
def test_a_non_blocking_stdin_is_read_to_its_end(nsqd: Nsqd, topic: str, command: str) -> None:
    """As programs with an event loop leave it to their children."""
    lines = [b"line %d\n" % number for number in range(3)]
    read, write = os.pipe()
    os.set_blocking(read, False)
    line = "exec " + shell_line(nsqd, topic, command)
    with subprocess.Popen(line, shell=True, stdin=read, stdout=subprocess.DEVNULL) as process:
        os.close(read)
        for line in lines:
            wait_until(lambda: is_asleep(process.pid))  # it has read what there was
            os.write(write, line)
        os.close(write)
    assert process.returncode == 0
    wanted = [b"".join(lines)] if "--whole" in command else [line.strip() for line in lines]
    assert bodies(nsqd, topic) == wanted


def is_asleep(pid: int) -> bool:
    """Whether it waits, as for input."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "SZ"


def bodies(nsqd: Nsqd, topic: str) -> list[bytes]:
    with urllib.request.urlopen(f"http://{nsqd.http_address}/log/peek?topic={topic}") as answer:
        return [message["body"].encode() for message in json.load(answer)["messages"]]


def test_an_nsqd_without_streams_serves_and_ends(tmp_path: Path) -> None:
    ports = HeldPort(), HeldPort()
    tcp, http = (f"127.0.0.1:{each.number}" for each in ports)
    flags = f"--tcp-address={tcp} --http-address={http} --data-path={tmp_path}"
    line = f"exec {sys.executable} -m pumpline.tools.nsqd {flags} <&- >&- 2>&-"
    with subprocess.Popen(["bash", "-c", line]) as process:
        try:
            wait_until(lambda: answers(http))
            for name in ("0", "1", "2"):  # what has these numbers is not nsqd's
                assert os.readlink(f"/proc/{process.pid}/fd/{name}") == os.devnull
        finally:
            process.terminate()
        assert process.wait(60) == 0


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/ping", timeout=60) as answer:
            return bool(answer.read() == b"OK")
    except OSError:
        return False


def run(nsqd: Nsqd, topic: str, command: str) -> tuple[int, str]:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=c")
    nsqd.http("POST", f"/pub?topic={topic}", b"one")
    line = shell_line(nsqd, topic, command)
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=60, check=False, text=True
    )
    return done.returncode, done.stderr


def shell_line(nsqd: Nsqd, topic: str, command: str) -> str:
    tool, _, rest = command.partition(" ")
    program = [*PYTHON, "pumpline.tools.pumpline"] if tool == "pumpline" else command_of(tool)
    return f"{' '.join(program)} {rest}".format(
        topic=topic, tcp=nsqd.tcp_address, http=nsqd.http_address
    )
