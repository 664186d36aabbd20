"""SIGINT and SIGTERM end `run` in good order; and what `run` calls before and after."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from pumpline import sync
from pumpline.client import Consumer, Message
from tests.kit.client.consuming import CHANNEL, left, numbered, publish, until
from tests.kit.daemons import Nsqd

BOTH = [signal.SIGINT, signal.SIGTERM]

ASYNC = """
import asyncio, sys
from pumpline.client import Consumer

async def handle(message):
    print("begun", flush=True)
    await asyncio.sleep(0.3)
    print("handled", flush=True)

async def main():
    consumers = [Consumer(topic, "ch", nsqd=sys.argv[1]) for topic in sys.argv[2:]]
    await asyncio.gather(*(each.run(handle) for each in consumers))
    print("stopped", sum(each.counters.finished for each in consumers))

asyncio.run(main())
"""
SYNC = """
import sys, time
from pumpline.sync import Consumer

def handle(message):
    print("begun", flush=True)
    time.sleep(0.3)
    print("handled", flush=True)

consumer = Consumer(sys.argv[2], "ch", nsqd=sys.argv[1])
consumer.run(handle)
print("stopped 1")
"""
HANGING = ASYNC.replace("asyncio.sleep(0.3)", "asyncio.sleep(3600)")


def run_until_begun(program: str, *words: str) -> "subprocess.Popen[str]":
    """Started, and at work on a message of each topic."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for _ in words[1:]:
        line = process.stdout.readline()
        assert line == "begun\n", line + process.stdout.read()
    return process


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("program", [ASYNC, SYNC], ids=["asyncio", "threads"])
def test_a_signal_ends_run_after_the_messages_in_hand(
    nsqd: Nsqd, topic: str, program: str, number: signal.Signals
) -> None:
    publish(nsqd, topic, [b"1"])
    with run_until_begun(program, nsqd.tcp_address, topic) as process:
        process.send_signal(number)
        printed, _ = process.communicate(timeout=30)
    assert (process.returncode, printed) == (0, "handled\nstopped 1\n")
    assert left(nsqd, topic) == 0


def test_a_signal_ends_all_consumers_of_a_process(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}_a", f"{topic}_b"]
    for each in topics:
        publish(nsqd, each, [b"1"])
    with run_until_begun(ASYNC, nsqd.tcp_address, *topics) as process:
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=30)
    assert (process.returncode, printed) == (0, "handled\nhandled\nstopped 2\n")


def test_a_second_signal_does_not_wait(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(1))
    with run_until_begun(HANGING, nsqd.tcp_address, topic) as process:
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:  # the first one may not be there yet
            process.send_signal(signal.SIGTERM)
            threading.Event().wait(0.05)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", BOTH)
async def test_handlers_of_the_program_are_left_alone(
    nsqd: Nsqd, topic: str, number: signal.Signals
) -> None:
    got: list[int] = []
    former = signal.signal(number, lambda number, frame: got.append(number))
    try:
        consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
        running = asyncio.create_task(consumer.run(lambda message: None))
        await until(lambda: consumer.connections)
        os.kill(os.getpid(), number)
        await until(lambda: got)
        assert not running.done()
        await consumer.stop()
        await running
    finally:
        signal.signal(number, former)


@pytest.mark.parametrize("signals", [True, False])
async def test_former_handlers_are_back_after_run(nsqd: Nsqd, topic: str, signals: bool) -> None:
    former = [signal.getsignal(number) for number in BOTH]
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    running = asyncio.create_task(consumer.run(lambda message: None, signals=signals))
    await until(lambda: consumer.connections)
    during = [signal.getsignal(number) for number in BOTH]
    assert (during != former) == signals
    await consumer.stop()
    await running
    assert [signal.getsignal(number) for number in BOTH] == former


def test_run_in_another_thread_leaves_signals_alone(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"1"])
    former = [signal.getsignal(number) for number in BOTH]
    during: list[object] = []
    consumer = sync.Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)

    def handle(message: Message) -> None:
        during.extend(signal.getsignal(number) for number in BOTH)
        consumer.stop_soon()

    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    thread.join(60)
    assert during == former


async def test_on_start_and_on_stop(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"1"])
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    calls: list[str] = []

    @consumer.on_start
    async def open_pool() -> None:
        assert not consumer.connections
        calls.append("open pool")

    @consumer.on_start
    def count() -> None:
        calls.append("count")

    def noted(text: str) -> Callable[[], None]:
        return lambda: calls.append(text)

    consumer.on_stop(noted("close pool"))
    consumer.on_stop(noted("report"))

    async def handle(message: Message) -> None:
        calls.append("handle")
        consumer.stop_soon()

    await consumer.run(handle)
    assert calls == ["open pool", "count", "handle", "report", "close pool"]


async def test_a_start_that_fails_consumes_nothing_and_is_cleaned_up(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"1"])
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    calls: list[str] = []

    @consumer.on_start
    def fail() -> None:
        raise OSError("no database")

    @consumer.on_stop
    def clean_up() -> None:
        calls.append("cleaned up")

    with pytest.raises(OSError, match="no database"):
        await consumer.run(lambda message: None)
    assert calls == ["cleaned up"]
    assert (consumer.counters.received, left(nsqd, topic)) == (0, 1)
