"""The nsqlookupd command: what it prints, its config file, its signals and how it exits."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqlookupd, wait_until
from tests.kit.nsqlookupd.peer import OK, Peer

TIMEOUT_S = 60
LINE = re.compile(r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ([A-Z]+): (.*)")
LOOPBACK = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """For runs that end by themselves."""
    return subprocess.run(
        [sys.executable, "-m", "pumpline.tools.nsqlookupd", *argv],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def fatal_line(done: subprocess.CompletedProcess[str]) -> str:
    """The text of its one FATAL line, which is its last."""
    assert done.returncode == 1, done
    match = LINE.fullmatch(done.stderr.splitlines()[-1])
    assert match and match[1] == "FATAL", done.stderr
    return match[2]


def test_version_begins_as_nsqs_does() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nsqlookupd v1.3.0 (built w/pumpline-")


def test_help_tells_every_flag() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--inactive-producer-timeout duration" in done.stdout
    assert "--max-connections int" in done.stdout


def test_an_unknown_flag_is_a_usage_error() -> None:
    done = run("--nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("flag provided but not defined: -nope\nUsage of nsqlookupd:\n")


def test_a_taken_port_is_fatal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--tcp-address", "--http-address"):
            text = fatal_line(run(*LOOPBACK, f"{flag}={address}"))
            start = f"failed to instantiate nsqlookupd - listen ({address}) failed - "
            assert text.startswith(start)


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_without_a_port_is_fatal(address: str) -> None:
    text = fatal_line(run(*LOOPBACK, f"--tcp-address={address}"))
    assert text == (
        f"failed to instantiate nsqlookupd - listen ({address}) failed - not an <addr>:<port>"
    )


def test_a_missing_config_file_is_fatal() -> None:
    text = fatal_line(run("--config=/nowhere.cfg"))
    assert text == (
        "failed to load config file /nowhere.cfg - open /nowhere.cfg: no such file or directory"
    )


def test_the_config_file_is_read_and_flags_go_over_it(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'tcp_address = "127.0.0.1:1"\nbroadcast_address = "told"\nlog_level = "debug"\n'
    )
    with Nsqlookupd(tmp_path / "stderr", [f"--config={config}"]) as daemon:
        with Peer(daemon.tcp_port) as peer:
            assert peer.identify()["broadcast_address"] == "told"
        assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_well_when_asked_to(tmp_path: Path, number: signal.Signals) -> None:
    with Nsqlookupd(tmp_path / "stderr") as daemon, Peer(daemon.tcp_port) as peer:
        peer.identify()
        os.kill(daemon.process.pid, number)
        assert daemon.process.wait(TIMEOUT_S) == 0
        with pytest.raises((EOFError, ConnectionError)):
            peer.read_reply()
        lines = daemon.log_text().splitlines()
        assert all(LINE.fullmatch(line) for line in lines), lines
        assert lines[-1].endswith("INFO: NSQLOOKUPD: bye")


def test_a_hangup_is_ignored(tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "stderr") as daemon, Peer(daemon.tcp_port) as peer:
        os.kill(daemon.process.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP received, ignored" in daemon.log_text())
        assert peer.ask("PING") == OK


def test_it_starts_again_at_once_on_the_same_ports(tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "stderr") as daemon:
        with Peer(daemon.tcp_port) as peer:
            peer.identify()
            peer.register("t")
            daemon.restart()
        assert daemon.http("GET", "/topics") == (200, b'{"topics":[]}')
