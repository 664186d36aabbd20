"""A disk that is full: publishers are told, consumers drain it, and what goes makes room.

A small tmpfs is the disk; where none can be mounted the tests are skipped.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    ENOSPC_REASON,
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    refusal,
)
from tests.kit.daemons import ErrorFrame, RawClient, wait_until
from tests.kit.tools.verbs import in_shell

TMPFS_BYTES = 8 << 20
SEGMENT_BYTES = 512 << 10
BODY = bytes(32 << 10)
PAGE_BYTES = 4096


def ping(nsqd: KillableNsqd) -> tuple[int, bytes]:
    return nsqd.http("GET", "/ping")


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


def top_up(directory: Path, free_pages: int = 0) -> None:
    """Takes all of the disk but some pages: with none left not even a small file can be written."""
    with open(directory / "filler", "wb", buffering=0) as file:
        for size in (65536, PAGE_BYTES, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
        file.truncate(file.tell() // PAGE_BYTES * PAGE_BYTES - free_pages * PAGE_BYTES)


# -- topics that cannot be written ----------------------------------------------------------------


@pytest.fixture
def filled(full_nsqd: KillableNsqd) -> tuple[KillableNsqd, int]:
    """Its disk is full, and so is channel c of topic t; and how many messages that has."""
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        count = fill(client, "t")
    return full_nsqd, count


@pytest.mark.parametrize("free_pages", [0, 1], ids=["no room", "room for the manifest only"])
@pytest.mark.parametrize("over_http", [False, True], ids=["PUB", "/pub"])
def test_refused_publish_leaves_no_topic(
    filled: tuple[KillableNsqd, int], free_pages: int, over_http: bool
) -> None:
    nsqd, count = filled
    top_up(nsqd.data_path, free_pages)
    if over_http:
        assert nsqd.http("POST", "/pub?topic=new", BODY)[0] == 503
    else:
        with nsqd.connect() as client:
            assert refusal(client, "PUB new", BODY) == f"E_PUB_FAILED PUB failed {ENOSPC_REASON}"
    assert topic_names(nsqd) == ["t"]
    wait_until(lambda: not nsqd.topic_path("new").exists())
    nsqd.kill()
    nsqd.again()
    assert topic_names(nsqd) == ["t"]
    assert numbers(nsqd, "t", "c", count) == list(range(count))


def test_refused_publish_does_not_take_a_topic_that_was_there(full_nsqd: KillableNsqd) -> None:
    full_nsqd.act("/topic/create", topic="made")
    top_up(full_nsqd.data_path)
    with full_nsqd.connect() as client:
        refusal(client, "PUB made", BODY)
    assert topic_names(full_nsqd) == ["made"]


def test_full_disk_and_an_empty_directory_do_not_keep_the_daemon_from_starting(
    filled: tuple[KillableNsqd, int],
) -> None:
    """A kill may come after the directory of a new topic was made and before its manifest."""
    nsqd, count = filled
    nsqd.kill()
    nsqd.topic_path("new").mkdir()
    (nsqd.topic_path("new") / "topic.json.tmp").touch()
    top_up(nsqd.data_path)
    nsqd.again()
    assert topic_names(nsqd) == ["t"]
    assert not nsqd.topic_path("new").exists()
    assert numbers(nsqd, "t", "c", count) == list(range(count))


def test_full_disk_and_a_lost_manifest_do_not_keep_the_daemon_from_starting(
    filled: tuple[KillableNsqd, int],
) -> None:
    nsqd, count = filled
    nsqd.kill()
    (nsqd.topic_path("t") / "topic.json").unlink()
    top_up(nsqd.data_path)
    nsqd.again()
    assert numbers(nsqd, "t", "c", count) == list(range(count))


def test_full_disk_and_a_damaged_tail_do_not_keep_the_daemon_from_starting(
    filled: tuple[KillableNsqd, int],
) -> None:
    """There is no room to keep a copy of it."""
    nsqd, count = filled
    nsqd.kill()
    newest = nsqd.segments("t")[-1]
    with newest.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    top_up(nsqd.data_path)
    nsqd.again()
    assert numbers(nsqd, "t", "c", count - 1) == list(range(count - 1))
    with nsqd.connect() as client:
        client.publish("t", b"%06d" % count + BODY)
    assert numbers(nsqd, "t", "c", 1) == [count]


def topic_names(nsqd: KillableNsqd) -> list[str]:
    return sorted(topic["topic_name"] for topic in nsqd.stats()["topics"])


# -- cures ----------------------------------------------------------------------------------------


@pytest.fixture
def one_segment(small_disk: Path, tmp_path: Path, new_nsqd: NewNsqd) -> Iterator[KillableNsqd]:
    """A daemon on a small disk, with all that a topic has in the segment that is written to."""
    nsqd = new_nsqd(data_path=small_disk / "data")
    nsqd.log_path = tmp_path / "stderr"
    yield nsqd.start()
    if nsqd.is_running:
        nsqd.kill()


def free_bytes(nsqd: KillableNsqd) -> int:
    status = os.statvfs(nsqd.data_path)
    return status.f_bavail * status.f_frsize


def fill_to_the_last_byte(nsqd: KillableNsqd, topic: str) -> int:
    with nsqd.connect() as client:
        count = fill(client, topic)
    top_up(nsqd.data_path)
    assert len(nsqd.segments(topic)) == 1
    return count


def assert_cured(nsqd: KillableNsqd) -> None:
    """Publishing works, and after a kill nothing that had gone is there again."""
    assert nsqd.http("POST", "/pub?topic=t", b"000000" + BODY) == (200, b"OK")
    wait_until(lambda: ping(nsqd) == (200, b"OK"))
    nsqd.kill()
    nsqd.again()
    assert numbers(nsqd, "t", "c", 1) == [0]


def test_what_was_consumed_from_the_newest_segment_makes_room(one_segment: KillableNsqd) -> None:
    create_channel(one_segment, "t", "c")
    count = fill_to_the_last_byte(one_segment, "t")
    assert numbers(one_segment, "t", "c", count) == list(range(count))
    assert_cured(one_segment)


def test_publish_tokens_of_what_made_room_are_known_after_a_kill(
    one_segment: KillableNsqd,
) -> None:
    create_channel(one_segment, "t", "c")
    tokens = [f"token-{number}" for number in range(200)]
    for token in tokens:
        assert one_segment.http("POST", f"/pub?topic=t&token={token}", b"000000")[0] == 200
    count = fill_to_the_last_byte(one_segment, "t")
    numbers(one_segment, "t", "c", len(tokens) + count)
    assert one_segment.http("POST", "/pub?topic=t", b"000000" + BODY) == (200, b"OK")
    one_segment.kill()
    one_segment.again()
    for token in tokens:
        assert one_segment.http("POST", f"/pub?topic=t&token={token}", b"000000")[0] == 200
    assert numbers(one_segment, "t", "c", 1) == [0]


def test_a_restart_makes_room_of_what_was_consumed(one_segment: KillableNsqd) -> None:
    create_channel(one_segment, "t", "c")
    count = fill_to_the_last_byte(one_segment, "t")
    assert numbers(one_segment, "t", "c", count) == list(range(count))
    one_segment.stop()
    one_segment.again()
    assert free_bytes(one_segment) > TMPFS_BYTES // 2
    assert_cured(one_segment)


@pytest.mark.parametrize("path", ["/channel/empty", "/channel/delete"])
def test_emptying_or_deleting_a_channel_makes_room_at_once(
    one_segment: KillableNsqd, path: str
) -> None:
    create_channel(one_segment, "t", "c")
    fill_to_the_last_byte(one_segment, "t")
    one_segment.act(path, topic="t", channel="c")
    assert free_bytes(one_segment) > TMPFS_BYTES // 2
    create_channel(one_segment, "t", "c")
    assert_cured(one_segment)


def test_emptying_a_topic_makes_room_at_once(one_segment: KillableNsqd) -> None:
    fill_to_the_last_byte(one_segment, "t")
    one_segment.act("/topic/empty", topic="t")
    assert free_bytes(one_segment) > TMPFS_BYTES // 2
    assert_cured(one_segment)


def test_deleting_a_hold_makes_room_at_once(one_segment: KillableNsqd) -> None:
    create_channel(one_segment, "t", "c")
    one_segment.act("/hold/create", topic="t", hold="job")
    count = fill_to_the_last_byte(one_segment, "t")
    assert numbers(one_segment, "t", "c", count) == list(range(count))
    one_segment.act("/hold/delete", topic="t", hold="job")
    assert free_bytes(one_segment) > TMPFS_BYTES // 2
    assert_cured(one_segment)


def test_retention_can_be_set_on_a_full_disk_and_makes_room_at_once(
    one_segment: KillableNsqd,
) -> None:
    create_channel(one_segment, "t", "c")
    count = fill_to_the_last_byte(one_segment, "t")
    assert numbers(one_segment, "t", "c", count) == list(range(count))
    status, body = one_segment.http("POST", "/topic/settings?topic=t", b'{"retention_bytes":0}')
    assert status == 200, body
    assert free_bytes(one_segment) > TMPFS_BYTES // 2
    assert_cured(one_segment)


def test_a_message_that_is_still_needed_keeps_the_newest_segment(
    one_segment: KillableNsqd,
) -> None:
    create_channel(one_segment, "t", "c")
    create_channel(one_segment, "t", "slow")
    count = fill_to_the_last_byte(one_segment, "t")
    one_segment.act("/channel/delete", topic="t", channel="c")
    assert one_segment.http("POST", "/pub?topic=t", BODY)[0] == 503
    assert numbers(one_segment, "t", "slow", count) == list(range(count))


def test_ping_says_no_for_as_long_as_publishes_are_refused(one_segment: KillableNsqd) -> None:
    """There is room for a small file, but not for what is published."""
    create_channel(one_segment, "t", "c")
    fill_to_the_last_byte(one_segment, "t")
    top_up(one_segment.data_path, free_pages=3)
    answers = set()
    until_s = time.monotonic() + 3  # nsqd tries a write of its own every second
    while time.monotonic() < until_s:
        status, body = one_segment.http("POST", "/pub?topic=t", BODY)
        assert status == 503
        assert json.loads(body) == {"message": "WRITE_FAILED", "detail": ENOSPC_REASON}
        answers.add(ping(one_segment)[0])
        time.sleep(0.05)
        answers.add(ping(one_segment)[0])
    assert answers == {500}


# -- what only the write-ahead log has -------------------------------------------------------------


def publish_until_refused(nsqd: KillableNsqd, topics: list[str]) -> dict[str, list[bytes]]:
    """One small message to each topic in turn; returns what was acknowledged."""
    sent: dict[str, list[bytes]] = {topic: [] for topic in topics}
    with nsqd.connect() as client, suppress(ErrorFrame):
        for number in range(10_000):
            for topic in topics:
                client.publish(topic, b"%06d" % number)
                sent[topic].append(b"%06d" % number)
    return sent


@pytest.mark.parametrize("flag", ["", "--sync-every=1", "--mem-queue-size=0"])
@pytest.mark.parametrize(("topics", "free_pages"), [(1, 1), (1, 2), (5, 4)])
def test_what_the_write_ahead_log_has_is_delivered_from_memory(
    one_segment: KillableNsqd, topics: int, free_pages: int, flag: str
) -> None:
    """There is room for the write-ahead log, and none for a segment."""
    nsqd = one_segment
    if flag:
        nsqd.stop()
        nsqd.flags = [flag]
        nsqd.again()
    names = [f"t{number}" for number in range(topics)]
    for name in names:
        create_channel(nsqd, name, "c")
    top_up(nsqd.data_path, free_pages=free_pages)
    sent = publish_until_refused(nsqd, names)
    top_up(nsqd.data_path)
    for _ in range(3):
        for name in names:
            count = len(sent[name])
            assert nsqd.depth(name, "c") == count > 0
            offsets = json.loads(nsqd.http("GET", f"/log/offsets?topic={name}")[1])
            assert (offsets["first"], offsets["end"]) == (0, count)
        nsqd.kill()
        nsqd.again()
    for name in names:
        seek(nsqd, name, f"offset={len(sent[name]) - 1}")
        assert [message.body for message in drain(nsqd, name, "c", 1)] == sent[name][-1:]
        seek(nsqd, name, "to=beginning")
        received = drain(nsqd, name, "c", len(sent[name]))
        assert [message.body for message in received] == sent[name]
    (nsqd.data_path / "filler").unlink()
    wait_until(lambda: ping(nsqd)[0] == 200)
    for name in names:
        await_checkpoint(nsqd, name, "c")
    nsqd.kill()
    nsqd.again()
    for name in names:
        assert drain(nsqd, name, "c", 0) == []


def seek(nsqd: KillableNsqd, topic: str, place: str) -> None:
    """Moves channel c. On a full disk the answer may be 500: a kill would undo it."""
    status, _ = nsqd.http("POST", f"/channel/seek?topic={topic}&channel=c&{place}")
    assert status in (200, 500)


@pytest.mark.parametrize("kills", [0, 1])
def test_an_ephemeral_channel_drains_a_topic_without_channels(
    one_segment: KillableNsqd, kills: int
) -> None:
    """There is no room for the cursor of another channel."""
    nsqd = one_segment
    nsqd.act("/topic/create", topic="t")
    top_up(nsqd.data_path, free_pages=1)
    sent = publish_until_refused(nsqd, ["t"])["t"]
    top_up(nsqd.data_path)
    for _ in range(kills):
        nsqd.kill()
        nsqd.again()
    with nsqd.connect() as client:
        client.send(b"SUB t new\n")
        with pytest.raises(ErrorFrame, match=f"E_SUB_FAILED SUB failed {ENOSPC_REASON}"):
            client.read_response()
    assert [message.body for message in drain(nsqd, "t", "new#ephemeral", len(sent))] == sent


def test_pumpline_pub_says_that_the_disk_is_full(full_nsqd: KillableNsqd) -> None:
    create_channel(full_nsqd, "t", "c")
    with full_nsqd.connect() as client:
        fill(client, "t")
    done = in_shell(f"pumpline pub t hello --nsqd={full_nsqd.http_address}")
    *_, why, what = done.err.splitlines()
    assert done.code == 1
    assert ENOSPC_REASON in why
    assert what == "pumpline pub: no nsqd is healthy: nothing was published"
