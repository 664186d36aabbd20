"""`pumpline up`: one command, all daemons; Ctrl-C ends them; the data is there later."""

import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pumpline.tools.up import COMMAND
from tests.kit.asking import ask_once
from tests.kit.daemons import wait_until
from tests.kit.tools.verbs import examples_of, in_shell

ADDRESSES = ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
END_S_MAX = 60.0


class Running(NamedTuple):
    process: subprocess.Popen[str]
    shown: str
    nsqd: str
    lookupd: str
    admin: str

    def ask(self, method: str, address: str, path: str, body: bytes = b"") -> bytes:
        url = f"http://{address}{path}"
        status, answer = ask_once(method, url, timeout_s=END_S_MAX, bytes_max=1 << 20, body=body)
        assert status == 200, answer
        return answer

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=END_S_MAX)
        return self.process.returncode, errors


@contextmanager
def up(data: Path, *more: str) -> Iterator[Running]:
    flags = [f"--{name}-address=127.0.0.1:0" for name in ADDRESSES]
    command = [sys.executable, "-m", "pumpline.tools.pumpline", "up", f"--data-path={data}"]
    with subprocess.Popen(
        [*command, *flags, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            shown = ""
            while not shown.endswith("Ctrl-C ends all.\n"):
                line = process.stdout.readline()
                assert line, (shown, process.stderr and process.stderr.read())
                shown += line
            http = dict(re.findall(r"^  (\w+) .*http://(\S+)", shown, re.M))
            yield Running(process, shown, http["nsqd"], http["nsqlookupd"], http["nsqadmin"])
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_second_start_finds_the_data(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "made" / "for it"
    with up(data) as first:
        first.ask("POST", first.nsqd, "/pub?topic=orders", b"one")
        code, errors = first.end(number)
        assert (code, errors) == ((0, "pumpline is down.\n") if code >= 0 else (-number, ""))
    with up(data, "--verbose", "--", "--max-msg-size=10") as second:
        assert b'"body":"one"' in second.ask("GET", second.nsqd, "/log/peek?topic=orders")
        assert second.ask("GET", second.nsqd, "/config/max_msg_size") == b"10"
        assert str(data / "pumpline.log") in second.shown
        _, errors = second.end(signal.SIGINT)
    assert "[nsqd] " in errors
    assert "[nsqlookupd] " in (data / "pumpline.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("example", examples_of(COMMAND.usage))
def test_examples_run(tmp_path: Path, example: str) -> None:
    words = shlex.split(example.replace("/tmp/pumpline", str(tmp_path / "other")))
    assert words[:2] == ["pumpline", "up"]
    with up(tmp_path, *words[2:]) as running:
        assert running.ask("GET", running.nsqd, "/ping") == b"OK"


@pytest.mark.slow
def test_nsqd_is_registered(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        port = running.nsqd.rpartition(":")[2].encode()
        wait_until(lambda: b'"http_port":' + port in running.ask("GET", running.lookupd, "/nodes"))
        assert port in running.ask("GET", running.admin, "/api/nodes")
        running.ask("POST", running.nsqd, "/drain?timeout=1s")  # ends nsqd, and with it all
        assert running.process.wait(END_S_MAX) == 0


@pytest.mark.parametrize("name", ADDRESSES)
def test_an_address_in_use_is_said_in_a_sentence(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = dict.fromkeys(ADDRESSES, "127.0.0.1:0") | {name: f"127.0.0.1:{port}"}
        flags = [f"--{each}-address={address}" for each, address in addresses.items()]
        said = in_shell(shlex.join(["pumpline", "up", f"--data-path={tmp_path}", *flags]))
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"pumpline up: 127.0.0.1:{port} is in use. Another nsqd, or `pumpline up`, may be "
        f"running: end it, or say --{name}-address.\n"
    )


def test_what_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    said = in_shell(f"pumpline up --data-path={file}")
    assert (said.code, said.err) == (1, f"pumpline up: {file}: Not a directory\n")
    said = in_shell(f"pumpline up --data-path={tmp_path} -- --max-msg-sze=1")
    assert (said.code, "did you mean --max-msg-size?" in said.err) == (2, True)
    said = in_shell(f"pumpline up --data-path={tmp_path} nsqd")
    assert (said.code, "these are no flags of nsqd: nsqd" in said.err) == (2, True)
    for address in ("here", "here:http", "127.0.0.1:65536"):
        said = in_shell(f"pumpline up --data-path={tmp_path} --nsqd-tcp-address={address}")
        why = f"--nsqd-tcp-address {address}: expected <host>:<port>"
        assert (said.code, why in said.err) == (2, True)
