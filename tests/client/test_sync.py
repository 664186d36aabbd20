"""The client without asyncio: from scripts, threads and forked processes."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from pumpline.client import ConnectError, Message, NotSentError, RefusedError, Settings
from pumpline.sync import Consumer, Producer
from pumpline.sync.loop_thread import loop_thread
from pumpline.testing import LocalNsqd
from tests.kit.client.consuming import CHANNEL, drain, left
from tests.kit.daemons import Nsqd, wait_until


def test_publish(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"one")
        producer.publish_many(topic, (b"%d" % number for number in range(5000)))
        assert producer.connected == [nsqd.tcp_address]
    assert sum(drain(nsqd, topic, 5001).values()) == 5001


def test_it_starts_by_itself(nsqd: Nsqd, topic: str) -> None:
    producer = Producer(nsqd.tcp_address)
    assert producer.connected == []
    producer.publish(topic, b"m")
    producer.close()
    assert drain(nsqd, topic, 1) == Counter([b"m"])


def test_threads_share_a_producer(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:

        def work(name: str) -> None:
            for number in range(50):
                producer.publish(topic, f"{name}{number}".encode())

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(drain(nsqd, topic, 200)) == 200


def test_exceptions_come_through(nsqd: Nsqd, topic: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Producer("nowhere")
    with pytest.raises(ConnectError):
        Producer("127.0.0.1:1").start()
    with Producer(nsqd.tcp_address, message_bytes_max=2 << 20) as producer:
        with pytest.raises(ValueError, match="empty"):
            producer.publish(topic, b"")
        with pytest.raises(RefusedError):
            producer.publish(topic, b"x" * (3 << 19))
        with pytest.raises(ZeroDivisionError):
            producer.publish_many(topic, (b"%d" % (1 // (5 - number)) for number in range(10)))
    with pytest.raises(NotSentError, match="closed"):
        producer.publish(topic, b"m")


def test_publish_many_says_how_many_are_published(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"x"] * 2000 + [b"x" * (3 << 19)] + [b"x"] * 10
    with Producer(nsqd.tcp_address, message_bytes_max=2 << 20) as producer:
        with pytest.raises(RefusedError) as caught:
            producer.publish_many(topic, bodies)
        assert caught.value.confirmed == 2000
    assert sum(drain(nsqd, topic, 2000).values()) == 2000


def test_publish_many_takes_large_messages_a_few_at_a_time(nsqd: Nsqd, topic: str) -> None:
    def bodies() -> Iterator[bytes]:
        for _ in range(400):
            yield b"x" * 200_000
        raise ZeroDivisionError

    with Producer(nsqd.tcp_address, pending_bytes_max=1 << 20) as producer:
        with pytest.raises(ZeroDivisionError):
            producer.publish_many(topic, bodies())
        assert producer.published > 0  # the first before the last was taken


def test_a_producer_that_is_closed_while_others_publish_stays_closed(
    own_nsqd: Nsqd, topic: str
) -> None:
    producer = Producer(own_nsqd.tcp_address)
    outcomes: list[Exception] = []
    begun = threading.Barrier(9)

    def publish_on() -> None:
        begun.wait()
        try:
            while True:
                producer.publish(topic, b"m")
        except NotSentError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=publish_on) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    producer.close()  # as they start it
    for thread in threads:
        thread.join(10)
    assert len(outcomes) == 8
    wait_until(lambda: not own_nsqd.stats()["producers"])


def test_a_call_that_could_never_return_is_refused(nsqd: Nsqd, topic: str) -> None:
    outcome: Future[str] = Future()
    with Producer(nsqd.tcp_address) as producer:

        def on_the_loop() -> None:
            try:
                producer.publish(topic, b"m")
            except RuntimeError as error:
                outcome.set_result(str(error))

        loop_thread().loop.call_soon_threadsafe(on_the_loop)
        assert "event loop" in outcome.result(10)


FORKS = """
import os, sys
from pumpline.sync import Consumer, Producer
address, topic = sys.argv[1:]
producer = Producer(address)
producer.publish(topic, b"parent")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        producer.publish(topic, b"child %d" % number)
        with producer:
            producer.publish_many(topic, [b"child %d" % number] * 2)
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
producer.publish(topic, b"parent")
producer.close()
"""


def test_a_fork_connects_anew_and_leaves_the_parent_alone(nsqd: Nsqd, topic: str) -> None:
    subprocess.run([sys.executable, "-c", FORKS, nsqd.tcp_address, topic], check=True, timeout=60)
    expected = Counter({b"parent": 2, b"child 0": 3, b"child 1": 3, b"child 2": 3})
    assert drain(nsqd, topic, 11) == expected


IDLE_CHILD = """
import os, sys
from pumpline.sync import Consumer, Producer
address, topic = sys.argv[1:]
producer = Producer(address)
producer.publish(topic, b"m")
if os.fork() == 0:
    sys.stdin.read()  # lives on, and does nothing
    os._exit(0)
producer.close()
print("closed", flush=True)
sys.stdin.read()
"""


def test_a_forked_process_does_not_keep_the_connection(own_nsqd: Nsqd, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IDLE_CHILD, own_nsqd.tcp_address, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"closed\n"
        wait_until(lambda: not own_nsqd.stats()["producers"])
        process.communicate(b"")


def test_importing_it_starts_no_thread() -> None:
    program = "import threading, pumpline.sync; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"1"


# -- consuming ----------------------------------------------------------------------------------


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)


def test_messages_are_iterated_until_there_are_no_more(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(500)]
    publish(nsqd, topic, *bodies)
    received = []
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=50) as consumer:
        wait_until(lambda: consumer.in_flight == 50)
        for message in consumer.messages(idle_s=1.0):
            received.append(message.body)
            assert message.finish()
    assert sorted(received) == sorted(bodies)
    wait_until(lambda: left(nsqd, topic) == 0)


def test_whoever_stops_iterating_gives_the_rest_back(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(20)))
    for message in Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=20):
        message.finish()
        break
    wait_until(lambda: nsqd.channel_stats(topic, CHANNEL)["depth"] == 19)
    assert nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 0


def test_a_message_is_requeued_and_touched(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"m")
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
        messages = iter(consumer)
        first = next(messages)
        assert first.touch()
        assert first.requeue(0, backoff=False)
        second = next(messages)
        assert (first.attempts, second.attempts) == (1, 2)
        second.finish()
    wait_until(lambda: left(nsqd, topic) == 0)


def test_batches(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(100)))
    count = 0
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=100) as consumer:
        wait_until(lambda: consumer.in_flight == 100)
        for batch in consumer.batches(30, idle_s=1.0):
            assert len(batch) <= 30
            count += len(batch)
            batch.finish()
    assert count == 100
    wait_until(lambda: left(nsqd, topic) == 0)


def test_a_handler_runs_in_threads_until_it_is_stopped(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(100)))
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=10)
    handled: list[tuple[bytes, str]] = []

    def handle(message: Message) -> None:
        handled.append((message.body, threading.current_thread().name))
        if len(handled) == 100:
            consumer.stop_soon()

    consumer.run(handle, concurrency=3)
    assert len({body for body, _ in handled}) == 100
    assert threading.current_thread().name not in {name for _, name in handled}
    wait_until(lambda: left(nsqd, topic) == 0)


@pytest.mark.slow
def test_heartbeats_are_answered_while_a_message_is_handled(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"m")
    settings = Settings(heartbeat_interval_s=1.0)
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, settings=settings) as consumer:
        message = next(iter(consumer))
        time.sleep(2.5)  # nsqd drops who does not answer for two intervals
        assert message.finish()
    wait_until(lambda: left(nsqd, topic) == 0)
    assert nsqd.channel_stats(topic, CHANNEL)["timeout_count"] == 0


def test_messages_that_waited_too_long_are_not_shown(tmp_path: Path, topic: str) -> None:
    with LocalNsqd("--msg-timeout=1s", data_path=tmp_path) as nsqd:
        nsqd.publish(topic, b"1", b"2", b"3")
        seen = []
        with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, auto_touch=False) as consumer:
            for message in consumer:
                seen.append((message.body, message.attempts))
                if len(seen) == 1:
                    wait_until(lambda: consumer.counters.expired == 3)
                assert message.finish() == (len(seen) > 1)
                if len(seen) == 4:
                    break
        assert seen[0][1] == 1
        assert sorted(seen[1:]) == [(b"1", 2), (b"2", 2), (b"3", 2)]


def test_giving_up_may_publish(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"bad")
    with Producer(nsqd.tcp_address) as producer:

        def keep(message: Message) -> None:
            producer.publish(f"{topic}_failed", message.body)

        consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_attempts=1, giving_up=keep)
        for message in consumer.messages(idle_s=1.0):
            message.requeue(0, backoff=False)
    wait_until(lambda: left(nsqd, topic) == 0)
    assert drain(nsqd, f"{topic}_failed", 1) == Counter([b"bad"])


def test_a_handler_that_waits_for_its_own_end_is_told(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"m")
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    told: list[str] = []

    def handle(message: Message) -> None:
        try:
            consumer.stop()
        except RuntimeError as error:
            told.append(str(error))
            consumer.stop_soon()

    consumer.run(handle)
    assert told == ["a handler cannot wait for its own end: call stop_soon"]
    assert left(nsqd, topic) == 0


def test_what_it_is_doing_can_be_seen(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"1", b"2")
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    assert (consumer.connections, consumer.in_flight, consumer.counters.received) == ([], 0, 0)
    with consumer:
        messages = iter(consumer)
        next(messages).finish()
        assert consumer.connections == [nsqd.tcp_address]
        wait_until(lambda: (consumer.in_flight, consumer.counters.finished) == (1, 1))
        next(messages).finish()


LEFT_OPEN = """
import sys
from pumpline.sync import Consumer
address, topic = sys.argv[1:]
messages = iter(Consumer(topic, "ch", nsqd=address, max_in_flight=5))
next(messages).finish()
"""


def test_a_program_that_ends_amid_an_iteration_ends_and_gives_the_rest_back(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(10)))
    program = [sys.executable, "-c", LEFT_OPEN, nsqd.tcp_address, topic]
    done = subprocess.run(program, check=True, timeout=30, capture_output=True)
    assert done.stderr == b""
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["depth"], stats["in_flight_count"]) == (9, 0)


def test_a_consumer_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="needs the address"):
        Consumer("t", "c")
    with pytest.raises(ValueError, match="channel"):
        Consumer("t", "bad channel", nsqd="127.0.0.1:4150")
