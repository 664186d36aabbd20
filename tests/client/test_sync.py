"""The client without asyncio: from scripts, threads and forked processes."""

import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from daemons import Nsqd, wait_until

from pumpline.client import ConnectError, Message, NotSent, Refused, Settings
from pumpline.sync import Consumer, Producer

CHANNEL = "ch"


def drain(nsqd: Nsqd, topic: str, count: int) -> Counter[bytes]:
    with nsqd.connect() as client:
        client.sub(topic, CHANNEL)
        client.rdy(2500)
        received = Counter[bytes]()
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            received[message.body] += 1
    assert nsqd.channel_stats(topic, CHANNEL)["depth"] == 0
    return received


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
        with pytest.raises(Refused):
            producer.publish(topic, b"x" * (3 << 19))
        with pytest.raises(ZeroDivisionError):
            producer.publish_many(topic, (b"%d" % (1 // (5 - number)) for number in range(10)))
    with pytest.raises(NotSent, match="closed"):
        producer.publish(topic, b"m")


def test_publish_many_says_how_many_are_published(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"x"] * 2000 + [b"x" * (3 << 19)] + [b"x"] * 10
    with Producer(nsqd.tcp_address, message_bytes_max=2 << 20) as producer:
        with pytest.raises(Refused) as caught:
            producer.publish_many(topic, bodies)
        assert caught.value.confirmed == 2000
    assert sum(drain(nsqd, topic, 2000).values()) == 2000


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


def unfinished(nsqd: Nsqd, topic: str) -> int:
    stats = nsqd.channel_stats(topic, CHANNEL)
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def test_messages_are_iterated_until_there_are_no_more(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(500)]
    publish(nsqd, topic, *bodies)
    received = []
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=50)
    for message in consumer.messages(idle_s=0.3):
        received.append(message.body)
        assert message.finish()
    assert sorted(received) == sorted(bodies)
    wait_until(lambda: unfinished(nsqd, topic) == 0)


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
    wait_until(lambda: unfinished(nsqd, topic) == 0)


def test_batches(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(100)))
    count = 0
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=100) as consumer:
        for batch in consumer.batches(30, idle_s=0.3):
            assert len(batch) <= 30
            count += len(batch)
            batch.finish()
    assert count == 100
    wait_until(lambda: unfinished(nsqd, topic) == 0)


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
    wait_until(lambda: unfinished(nsqd, topic) == 0)


@pytest.mark.slow
def test_heartbeats_are_answered_while_a_message_is_handled(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"m")
    settings = Settings(heartbeat_interval_s=1.0)
    with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, settings=settings) as consumer:
        message = next(iter(consumer))
        time.sleep(2.5)  # nsqd drops who does not answer for two intervals
        assert message.finish()
    wait_until(lambda: unfinished(nsqd, topic) == 0)
    assert nsqd.channel_stats(topic, CHANNEL)["timeout_count"] == 0


def test_a_consumer_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="needs the address"):
        Consumer("t", "c")
    with pytest.raises(ValueError, match="channel"):
        Consumer("t", "bad channel", nsqd="127.0.0.1:4150")
