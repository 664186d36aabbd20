"""The demo's nsqd: a process that a SIGKILL ends, and that comes back with its messages."""

from pathlib import Path

import pytest

from pumpline.tools.demo.killable_nsqd import KillableNsqd


def test_a_killed_nsqd_comes_back_on_its_ports_with_what_it_acknowledged(tmp_path: Path) -> None:
    with KillableNsqd(data_path=tmp_path) as nsqd:
        ports = nsqd.tcp_port, nsqd.http_port
        nsqd.publish("orders", b"first", b"second")
        nsqd.kill()
        with pytest.raises(OSError):
            nsqd.get("/ping")
        nsqd.start()
        assert (nsqd.tcp_port, nsqd.http_port) == ports
        assert nsqd.depth("orders") == 2


def test_an_nsqd_that_cannot_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="did not start"):
        KillableNsqd(data_path=tmp_path / "file").start()
