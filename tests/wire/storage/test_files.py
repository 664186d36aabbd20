"""`/log/files`: where a range is, for readers on the machine of the node."""

import json
import os
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.logs import batches_in
from tests.kit.wire.admin import act
from tests.kit.wire.session import Connect
from tests.kit.wire.web import Answer
from tests.wire.http.test_log import get, messages, offsets, publish, publish_batches

pytestmark = pytest.mark.deviation  # NSQ has no such thing

NSQD_FLAGS = ["--max-bytes-per-file=2000"]
MACHINE = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def files(nsqd: Nsqd, topic: str, start: int, to: int, **more: object) -> Answer:
    asked = {"topic": topic, "from": start, "to": to, "machine": MACHINE, **more}
    return get(nsqd, "/log/files", **asked)


def read(answer: Answer) -> list[tuple[int, bytes]]:
    """Each part: the offset that it reaches, and its bytes."""
    found = []
    for file in answer.json()["files"]:
        with open(file["path"], "rb") as opened:
            status = os.fstat(opened.fileno())
            assert (file["device"], file["inode"]) == (status.st_dev, status.st_ino)
            for part in file["parts"]:
                pieces = [os.pread(opened.fileno(), size, at) for at, size in part["extents"]]
                found.append((part["to"], b"".join(pieces)))
    return found


def test_the_files_have_the_messages_asked_for(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = publish_batches(nsqd, connect, topic, 100)
    answer = files(nsqd, topic, 15, 77)
    assert answer.status == 200
    assert list(answer.json()) == ["log", "from", "to", "files"]
    said = [answer.json()[name] for name in ("log", "from", "to")]
    assert said == [offsets(nsqd, topic)["log"], 15, 77]
    assert len(answer.json()["files"]) > 1
    data = b"".join(part for _, part in read(answer))
    assert messages(batches_in(data)) == {offset: bodies[offset] for offset in range(10, 80)}


def test_parts_are_of_the_size_asked_for(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    bodies = publish_batches(nsqd, connect, topic, 100)
    at = 0
    for to, data in read(files(nsqd, topic, 0, 1 << 40, bytes_max=700)):
        assert len(data) <= 700
        found = messages(batches_in(data))
        assert found == {offset: bodies[offset] for offset in range(at, to)}
        at = to
    assert at == 100


def test_an_empty_range_is_in_no_file(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    publish(nsqd, connect, topic, 10)
    answer = files(nsqd, topic, 10, 10).json()
    assert (answer["to"], answer["files"]) == (10, [])


@pytest.mark.parametrize("machine", ["", "another"])
def test_who_cannot_name_the_machine_is_told_of_no_file(
    nsqd: Nsqd, connect: Connect, topic: str, machine: str
) -> None:
    publish(nsqd, connect, topic, 10)
    answer = files(nsqd, topic, 0, 10, machine=machine)
    assert (answer.status, answer.code) == (409, "OTHER_MACHINE")


def test_files_of_a_log_that_was_replaced_are_not_named(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    publish(nsqd, connect, topic, 10)
    old = offsets(nsqd, topic)["log"]
    act(nsqd, "/topic/delete", topic=topic)
    publish(nsqd, connect, topic, 10)
    answer = files(nsqd, topic, 0, 10, log=old)
    assert (answer.status, json.loads(answer.body)["message"]) == (409, "LOG_CHANGED")


def test_files_of_nobody_are_not_there(nsqd: Nsqd, topic: str) -> None:
    answer = files(nsqd, topic, 0, 1)
    assert (answer.status, answer.code) == (404, "TOPIC_NOT_FOUND")
