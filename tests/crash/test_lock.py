"""One data directory, one daemon."""

import subprocess

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import create_channel, drain


def second_nsqd(command: list[str]) -> tuple[int, str]:
    """Runs another daemon with the same flags to its end: its exit code and what it said."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stderr


def test_second_daemon_on_a_data_directory_ends_with_a_reason(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    with nsqd.connect() as client:
        client.publish("t", b"x")
    code, said = second_nsqd([str(part) for part in nsqd.process.args])  # type: ignore[union-attr]
    assert code == 1
    assert (
        f"failed to lock data-path: cannot flock directory {nsqd.data_path} - resource "
        "temporarily unavailable (possibly in use by another instance of nsqd)"
    ) in said
    assert [message.body for message in drain(nsqd, "t", "c", 1)] == [b"x"]


def test_lock_goes_with_the_process(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    nsqd.kill()
    nsqd.again()
    assert nsqd.stop() == 0
    nsqd.again()
    assert nsqd.is_running
