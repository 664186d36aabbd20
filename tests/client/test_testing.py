"""The daemons for users' tests, and the fixtures that bring them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pumpline import sync
from pumpline.client import Message, Producer, Retry
from pumpline.testing import LocalNsqadmin, LocalNsqd, LocalNsqlookupd
from tests.kit.daemons import wait_until


async def test_a_local_nsqd_is_published_to() -> None:
    with LocalNsqd() as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish_many("t", [b"1", b"2"])
        nsqd.publish("t", b"3")
        assert nsqd.depth("t") == 3
        assert nsqd.data_path.exists()
    assert not nsqd.data_path.exists()


async def test_it_goes_on_while_the_test_blocks() -> None:
    with LocalNsqd() as nsqd:
        nsqd.publish("t", b"m")  # blocks this event loop until it is answered
        assert nsqd.stats("t")["message_count"] == 1
        assert nsqd.stats("other") == {}


def test_it_takes_flags() -> None:
    with LocalNsqd("--max-msg-size=2") as nsqd:
        with pytest.raises(OSError, match="MSG_TOO_BIG"):
            nsqd.publish("t", b"three")
        nsqd.publish("t", b"22")


def test_a_restart_keeps_data_and_ports() -> None:
    with LocalNsqd() as nsqd:
        nsqd.publish("t", b"m")
        address = nsqd.tcp_address
        nsqd.restart()
        assert nsqd.tcp_address == address
        assert nsqd.depth("t") == 1


def test_data_in_a_directory_that_is_given_stays(tmp_path: Path) -> None:
    for depth in (1, 2):
        with LocalNsqd(data_path=tmp_path) as nsqd:
            nsqd.publish("t", b"m")
            assert nsqd.depth("t") == depth


def test_waiting_for_a_channel_says_what_is_left() -> None:
    with LocalNsqd() as nsqd:
        with pytest.raises(TimeoutError, match="no such channel"):
            nsqd.wait_until_done("t", "ch", timeout_s=0.01)
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=ch")
        nsqd.wait_until_done("t", "ch")
        nsqd.publish("t", b"m")
        with pytest.raises(TimeoutError, match="'depth': 1"):
            nsqd.wait_until_done("t", "ch", timeout_s=0.01)


def test_an_nsqd_finds_an_nsqlookupd() -> None:
    with LocalNsqlookupd() as lookupd:
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with LocalNsqd(flag) as nsqd, LocalNsqd(flag) as other:
            nsqd.publish("t", b"m")
            other.publish("t", b"m")
            assert nsqd.tcp_port != other.tcp_port
            assert b'"version"' in lookupd.get("/info")


def test_an_nsqadmin_shows_an_nsqd() -> None:
    with LocalNsqd() as nsqd, LocalNsqadmin(f"--nsqd-http-address={nsqd.http_address}") as admin:
        nsqd.publish("orders", b"m")
        assert b'"orders"' in admin.get("/api/topics")
        assert b"<title>nsqadmin</title>" in admin.get("/")


def test_a_wrong_flag_is_told() -> None:
    with pytest.raises(Exception, match="no-such-flag"), LocalNsqd("--no-such-flag"):
        pass


PLUGIN_TEST = """
def test_publish(nsqd, nsqlookupd):
    nsqd.publish("t", b"m")
    assert nsqd.depth("t") == 1

def test_each_has_its_own(nsqd):
    assert nsqd.depth("t") == 0
"""


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_plugin.py").write_text(PLUGIN_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pumpline.pytest_plugin", "."]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take seconds to load
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_imports_no_daemon() -> None:
    program = "import sys, pumpline.pytest_plugin; print('pumpline.nsqd' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_the_messages_of_a_topic_are_there_after_they_are_consumed() -> None:
    with LocalNsqd() as nsqd:
        assert nsqd.messages("t") == []
        bodies = [b"%d" % number for number in range(2500)] + [b"\xff\x00", "ä".encode()]
        with sync.Producer(nsqd.tcp_address) as producer:
            producer.publish_many("t", bodies)
        assert nsqd.messages("t") == bodies
        consumer = sync.Consumer("t", "ch", nsqd=nsqd.tcp_address, max_in_flight=2500)
        for count, message in enumerate(consumer, 1):
            message.finish()
            if count == len(bodies):
                break
        nsqd.wait_until_done("t", "ch")
        assert nsqd.messages("t") == bodies


def test_stats_of_all_topics() -> None:
    with LocalNsqd() as nsqd:
        nsqd.publish("a", b"1")
        nsqd.publish("b", b"1")
        stats = nsqd.stats()
        assert sorted(each["topic_name"] for each in stats["topics"]) == ["a", "b"]
        assert stats["health"] == "OK"


@pytest.mark.parametrize("how", ["raise", "retry", "requeue"])
def test_with_fast_retries_an_hour_passes_at_once(how: str) -> None:
    """The consumer under test has its usual delays: 90 s and more, or an hour."""
    attempts: list[int] = []
    with LocalNsqd(fast_retries=True) as nsqd:
        nsqd.publish("t", b"1")
        consumer = sync.Consumer("t", "ch", nsqd=nsqd.tcp_address)

        def handle(message: Message) -> None:
            attempts.append(message.attempts)
            if how == "retry":
                raise Retry(3600)
            if how == "requeue":
                message.requeue(3600)
            else:
                raise ValueError("no")

        with consumer:
            thread = threading.Thread(target=consumer.run, args=(handle,))
            thread.start()
            wait_until(lambda: nsqd.messages("t.dlq"))
            consumer.stop_soon()
            thread.join()
    assert attempts == [1, 2, 3, 4, 5]
