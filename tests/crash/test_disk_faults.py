"""A disk that cannot be written to: publishers are told, nothing queued is lost, and it heals.

RLIMIT_FSIZE stands in for a full disk: it can be set on a running process, and makes every write
fail at once. A small tmpfs, where one may be mounted, is the real thing.
"""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    EFBIG_REASON,
    ENOSPC_REASON,
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    mpub_body,
    refusal,
    until_barrier,
)
from tests.kit.daemons import ErrorFrame, RawClient, wait_until

SENT = [b"%d" % number for number in range(100)]

TMPFS_BYTES = 8 << 20
SEGMENT_BYTES = 512 << 10
BODY = bytes(32 << 10)


@pytest.fixture
def nsqd(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon whose topic t has a channel c with messages waiting in it."""
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    return nsqd


def ping(nsqd: KillableNsqd) -> tuple[int, bytes]:
    return nsqd.http("GET", "/ping")


# -- every write fails ------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize(
    ("line", "body", "answer"),
    [
        ("PUB {}", b"x", f"E_PUB_FAILED PUB failed {EFBIG_REASON}"),
        ("MPUB {}", mpub_body([b"x", b"y"]), f"E_MPUB_FAILED MPUB failed {EFBIG_REASON}"),
        ("DPUB {} 1", b"x", f"E_DPUB_FAILED DPUB failed {EFBIG_REASON}"),
    ],
    ids=["PUB", "MPUB", "DPUB"],
)
def test_publish_that_cannot_be_written_is_refused(
    nsqd: KillableNsqd, topic: str, line: str, body: bytes, answer: str
) -> None:
    with nsqd.connect() as client, nsqd.failing_disk():
        assert refusal(client, line.format(topic), body) == answer
        with pytest.raises(EOFError):
            client.read_frame()
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize("path", ["/pub?topic={}", "/mpub?topic={}", "/pub?topic={}&defer=1"])
def test_http_publish_that_cannot_be_written_is_answered_503(
    nsqd: KillableNsqd, topic: str, path: str
) -> None:
    with nsqd.failing_disk():
        status, body = nsqd.http("POST", path.format(topic), b"x")
        assert (status, body) == (503, b'{"message":"EXITING"}')
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


def test_only_the_publishes_that_failed_are_refused_in_a_pipeline(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client:
        client.publish("t", b"before")
        with nsqd.failing_disk():
            assert refusal(client, "PUB t", b"refused").startswith("E_PUB_FAILED ")
    with nsqd.connect() as client:
        client.publish("t", b"after")
    expected = [*SENT, b"before", b"after"]
    assert [message.body for message in drain(nsqd, "t", "c", len(expected))] == expected


def test_subscribing_to_a_new_channel_is_refused(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client, nsqd.failing_disk():
        client.send_command("SUB t new")
        with pytest.raises(ErrorFrame, match=f"^E_SUB_FAILED SUB failed {EFBIG_REASON}$"):
            client.read_response()
    assert nsqd.channel_stats("t", "new") == {}
    assert drain(nsqd, "t", "new", 0) == []


def test_ping_says_no_and_recovers_without_a_publish(nsqd: KillableNsqd) -> None:
    with nsqd.failing_disk():
        assert ping(nsqd) == (200, b"OK")
        with nsqd.connect() as client:
            refusal(client, "PUB t", b"x")
        status, body = ping(nsqd)
        assert status == 500
        assert body.startswith(b"NOK - ")
        assert EFBIG_REASON.encode() in body
        assert nsqd.stats()["health"] == body.decode()
    wait_until(lambda: ping(nsqd) == (200, b"OK"))


def test_consumers_work_on_and_what_they_finish_stays_finished(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as consumer:
        consumer.sub("t", "c")
        consumer.rdy(10)
        with nsqd.failing_disk():
            with nsqd.connect() as client:
                refusal(client, "PUB t", b"x")
            for body in SENT[:50]:
                message = consumer.read_message()
                assert message.body == body
                consumer.fin(message.id)
            until_barrier(consumer)
        await_checkpoint(nsqd, "t", "c")  # what could not be written is, once it can be
        nsqd.kill()
    nsqd.again()
    received = {message.body for message in drain(nsqd, "t", "c", 50)}
    assert received == set(SENT[50:])


def test_kill_while_the_disk_fails_loses_nothing_acknowledged(nsqd: KillableNsqd) -> None:
    with nsqd.failing_disk():
        with nsqd.connect() as client:
            refusal(client, "PUB t", b"refused")
        nsqd.kill()
    nsqd.again()
    assert [message.body for message in drain(nsqd, "t", "c", len(SENT))] == SENT


def test_write_cut_short_leaves_no_trace(nsqd: KillableNsqd) -> None:
    """The limit lies inside the message: part of it is written before the write fails."""
    size_bytes = nsqd.segments("t")[0].stat().st_size
    with (
        nsqd.connect() as client,
        nsqd.limited(resource.RLIMIT_FSIZE, max(size_bytes, 64 << 10) + 1000),
    ):
        assert refusal(client, "PUB t", bytes(500_000)) == f"E_PUB_FAILED PUB failed {EFBIG_REASON}"
    assert nsqd.segments("t")[0].stat().st_size == size_bytes
    with nsqd.connect() as client:
        client.publish("t", b"after")
    nsqd.kill()
    nsqd.again()
    expected = [*SENT, b"after"]
    assert [message.body for message in drain(nsqd, "t", "c", len(expected))] == expected
    assert "torn" not in nsqd.log_since_start()


def test_many_delayed_publishes_at_once_are_written(nsqd: KillableNsqd) -> None:
    """Each delay makes a batch of its own, and one writev takes only so many parts (IOV_MAX)."""
    count = 1500
    with nsqd.connect() as client:
        commands = (b"DPUB many %d\n\0\0\0\1x" % (1 + number % 7) for number in range(count))
        client.send(b"".join(commands))
        assert [client.read_response() for _ in range(count)] == [b"OK"] * count
    assert len(drain(nsqd, "many", "c", count)) == count


# -- a disk that is full ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount_path = tmp_path / "disk"
    mount_path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(mount_path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    yield mount_path
    subprocess.run(["umount", "--lazy", str(mount_path)], check=True)


@pytest.fixture
def full_nsqd(small_disk: Path, tmp_path: Path, new_nsqd: NewNsqd) -> Iterator[KillableNsqd]:
    nsqd = new_nsqd(f"--max-bytes-per-file={SEGMENT_BYTES}", data_path=small_disk / "data")
    nsqd.log_path = tmp_path / "stderr"  # not on the disk that is to be full
    nsqd.start()
    yield nsqd
    if nsqd.is_running:
        nsqd.kill()


def fill(client: RawClient, topic: str) -> int:
    """Publishes until there is no room; how many were acknowledged."""
    for count in range(10 * TMPFS_BYTES // len(BODY)):
        client.send_command(f"PUB {topic}", b"%06d" % count + BODY)
        try:
            client.read_response()
        except ErrorFrame as error:
            assert str(error) == f"E_PUB_FAILED PUB failed {ENOSPC_REASON}"
            return count
    raise AssertionError("the disk did not fill up")


def numbers(nsqd: KillableNsqd, topic: str, channel: str, count: int) -> list[int]:
    return [int(message.body[:6]) for message in drain(nsqd, topic, channel, count)]


def test_full_disk_refuses_publishes_and_keeps_what_it_has(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        count = fill(client, "t")
    assert count > TMPFS_BYTES // len(BODY) // 2
    assert ping(full_nsqd)[0] == 500
    assert numbers(full_nsqd, "t", "c", count) == list(range(count))
    # What was consumed makes room, at the latest when somebody publishes.
    with full_nsqd.connect() as client:
        client.publish("t", b"000000" + BODY)
    wait_until(lambda: ping(full_nsqd) == (200, b"OK"))
    assert numbers(full_nsqd, "t", "c", 1) == [0]


def test_full_disk_does_not_keep_the_daemon_from_starting(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        count = fill(client, "t")
    full_nsqd.kill()
    top_up(full_nsqd.data_path)
    full_nsqd.again()
    assert numbers(full_nsqd, "t", "c", count) == list(range(count))


def test_full_disk_does_not_keep_the_daemon_from_stopping_in_order(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        count = fill(client, "t")
    top_up(full_nsqd.data_path)
    assert full_nsqd.stop() == 0
    (full_nsqd.data_path / "filler").unlink()
    full_nsqd.again()
    assert numbers(full_nsqd, "t", "c", count) == list(range(count))


def test_topic_deleted_on_a_full_disk_makes_room(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        client.publish("kept", b"x")
        fill(client, "t")
    top_up(full_nsqd.data_path)
    full_nsqd.act("/topic/delete", topic="t")
    # Its files go in a thread.
    wait_until(lambda: full_nsqd.http("POST", "/pub?topic=kept", BODY)[0] == 200)
    wait_until(lambda: ping(full_nsqd) == (200, b"OK"))


def test_consumed_history_goes_before_a_publish_is_refused(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    group = 20
    rounds = 3 * TMPFS_BYTES // (group * len(BODY))
    for _ in range(rounds):
        with full_nsqd.connect() as client:
            for number in range(group):
                client.publish("t", b"%06d" % number + BODY)
        assert numbers(full_nsqd, "t", "c", group) == list(range(group))
    assert ping(full_nsqd) == (200, b"OK")


def test_consumed_history_of_other_topics_goes_before_a_publish_is_refused(
    full_nsqd: KillableNsqd,
) -> None:
    create_channel(full_nsqd, "history", "c")
    count = TMPFS_BYTES * 3 // 4 // len(BODY)
    with full_nsqd.connect() as client:
        for number in range(count):
            client.publish("history", b"%06d" % number + BODY)
    assert numbers(full_nsqd, "history", "c", count) == list(range(count))
    create_channel(full_nsqd, "busy", "c")
    with full_nsqd.connect() as client:
        for number in range(count):
            client.publish("busy", b"%06d" % number + BODY)
    assert numbers(full_nsqd, "busy", "c", count) == list(range(count))


def top_up(directory: Path) -> None:
    """Takes the last bytes of the disk, so that not even a small file can be written."""
    with open(directory / "filler", "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
