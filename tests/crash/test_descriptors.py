"""Descriptors run out: nobody who is connected is hurt, and it passes when descriptors are free."""

import contextlib
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.killable_nsqd import (
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    until_barrier,
)
from tests.kit.daemons import IO_TIMEOUT_S, ErrorFrame, RawClient, wait_until

SPARE_FILES = 12
CROWD_MAX = 200
ANSWER_S = 1.0

TOPICS = 3000  # and as many channels, each with a file
TOPICS_SOAK = 10_000
FILES_MAX = 1024


def is_served(client: RawClient) -> bool:
    """Whether the daemon has accepted a connection and answers on it."""
    try:
        client.send_command("SUB crowd c")
        return client.read_response(ANSWER_S) == b"OK"
    except ErrorFrame:
        return True
    except (OSError, EOFError):
        return False


def crowd(nsqd: KillableNsqd, stack: contextlib.ExitStack) -> int:
    """Opens connections until one is not served; how many were."""
    for count in range(CROWD_MAX):
        try:
            client = stack.enter_context(nsqd.connect())
        except OSError:
            return count
        if not is_served(client):
            return count
    raise AssertionError(f"{CROWD_MAX} connections were accepted")


def test_clients_are_served_while_no_further_one_can_connect(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    create_channel(nsqd, "cold", "c")
    create_channel(nsqd, "crowd", "c")
    with nsqd.connect() as producer, nsqd.connect() as consumer:
        consumer.sub("t", "c")
        consumer.rdy(1)
        producer.publish("t", b"before")
        producer.publish("cold", b"before")
        consumer.fin(consumer.read_message().id)
        with (
            contextlib.ExitStack() as stack,
            nsqd.limited(resource.RLIMIT_NOFILE, nsqd.open_files() + SPARE_FILES),
        ):
            assert crowd(nsqd, stack) <= SPARE_FILES
            for number in range(50):
                body = b"%d" % number
                producer.publish("t", body)
                message = consumer.read_message()
                assert message.body == body
                consumer.fin(message.id)
                producer.publish("cold", body)
            until_barrier(consumer)
        # The crowd has left and the limit is lifted.
        wait_until(lambda: can_connect(nsqd))
        producer.publish("new", b"x")
    assert len(drain(nsqd, "cold", "c", 51)) == 51
    wait_until(lambda: nsqd.http("GET", "/ping") == (200, b"OK"))


def can_connect(nsqd: KillableNsqd) -> bool:
    try:
        with nsqd.connect() as client:
            return is_served(client)
    except OSError:
        return False


def test_connections_are_accepted_again_when_others_close(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "crowd", "c")
    with nsqd.limited(resource.RLIMIT_NOFILE, nsqd.open_files() + SPARE_FILES):
        with contextlib.ExitStack() as stack:
            crowd(nsqd, stack)
        wait_until(lambda: can_connect(nsqd))


def test_new_topic_that_cannot_be_opened_is_refused_with_a_reason(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    with nsqd.connect() as client:
        client.publish("t", b"x")  # is accepted before the limit comes
        with (
            nsqd.limited(resource.RLIMIT_NOFILE, 3),
            pytest.raises(ErrorFrame, match=r"^E_PUB_FAILED PUB failed too many open files$"),
        ):
            client.send_command("PUB new", b"x")
            client.read_response()
    with nsqd.connect() as client:
        client.publish("new", b"y")
    assert [message.body for message in drain(nsqd, "new", "c", 1)] == [b"y"]


def test_what_was_finished_without_descriptors_stays_finished(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "c")
    with nsqd.connect() as client:
        client.mpub("t", [b"1", b"2", b"3"])
        client.sub("t", "c")
        client.rdy(2)
        with nsqd.limited(resource.RLIMIT_NOFILE, 3):
            for _ in range(2):
                client.fin(client.read_message().id)
            until_barrier(client)
            wait_until(lambda: "CHECKPOINT: failed to write" in nsqd.log_since_start())
        await_checkpoint(nsqd, "t", "c")
        nsqd.kill()
    nsqd.again()
    assert [message.body for message in drain(nsqd, "t", "c", 1)] == [b"3"]


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such: so many files are slow to make on some disks."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pumpline-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param(TOPICS, marks=pytest.mark.slow),
        pytest.param(TOPICS_SOAK, marks=pytest.mark.soak),
    ],
)
def test_thousands_of_topics_need_no_more_descriptors_than_there_are(
    memory_path: Path, new_nsqd: NewNsqd, topics: int
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    nsqd = new_nsqd(data_path=memory_path / "data")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, hard))
    try:
        nsqd.start()
        names = [f"topic-{number}" for number in range(topics)]
        with nsqd.connect() as client:
            publish_to_all(client, names, b"first")
        create_channels(nsqd, names)
        with nsqd.connect() as client:
            publish_to_all(client, names, b"second")
        assert nsqd.open_files() < FILES_MAX // 2
        check_some(nsqd, names[:: topics // 20])
        nsqd.kill()
        nsqd.again()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert nsqd.open_files() < FILES_MAX // 2
    check_some(nsqd, names[1 :: topics // 20])
    assert "too many open files" not in nsqd.log_text().lower()


def publish_to_all(client: RawClient, names: list[str], body: bytes) -> None:
    step = 500
    sized = len(body).to_bytes(4) + body
    for start in range(0, len(names), step):
        group = names[start : start + step]
        client.send(b"".join(f"PUB {name}\n".encode() + sized for name in group))
        assert {client.read_response() for _ in group} == {b"OK"}


def create_channels(nsqd: KillableNsqd, names: list[str]) -> None:
    """Over one HTTP connection, with many requests under way: one by one takes twice as long."""
    step = 200
    request = "POST /channel/create?topic={}&channel=c HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", nsqd.http_port), IO_TIMEOUT_S) as connection:
        for start in range(0, len(names), step):
            group = names[start : start + step]
            connection.sendall("".join(map(request.format, group)).encode())
            answer = b""
            while answer.count(b"\r\n\r\n") < len(group):
                chunk = connection.recv(1 << 16)
                assert chunk, answer
                answer += chunk
            assert answer.count(b"HTTP/1.1 200 ") == len(group), answer


def check_some(nsqd: KillableNsqd, names: list[str]) -> None:
    for name in names:
        assert [message.body for message in drain(nsqd, name, "c", 2)] == [b"first", b"second"]
