"""The client without asyncio amid forks, signals, interrupts and event loops of others.

Programs that could hang run as processes of their own.
"""

import asyncio
import subprocess
import sys
import warnings

import pytest

from pumpline.client import Message, Settings
from pumpline.sync import Consumer, Producer
from tests.kit.client.consuming import CHANNEL, left, numbered, publish
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.uncovered import uncovered_environment

TIMEOUT_S = 60  # nobody waits so long when all is well


def run(program: str, *arguments: str) -> str:
    """What it prints; it must end by itself."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=uncovered_environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_async_giving_up_is_awaited_before_the_message_is_finished(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"m"])
    given_up = []

    async def give_up(message: Message) -> None:
        await asyncio.sleep(0)
        given_up.append(message.body)

    settings = Settings(requeue_delay_s=0, backoff_max_s=0)
    with Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        max_attempts=1,
        giving_up=give_up,
        settings=settings,
    ) as consumer:
        next(iter(consumer)).requeue(0)
        list(consumer.messages(idle_s=0.2))
        wait_until(lambda: left(nsqd, topic) == 0)
    assert given_up == [b"m"]


def test_a_threads_handler_that_returns_a_coroutine_does_not_lose_the_message(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"m"])

    async def handle(message: Message) -> None:
        raise AssertionError("there is no event loop for it")

    seen = []

    def handler(message: Message) -> object:
        seen.append(message.attempts)
        if len(seen) == 2:
            consumer.stop_soon()
            return None
        return handle(message)

    settings = Settings(requeue_delay_s=0, backoff_multiplier_s=0.01, backoff_max_s=0.02)
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, settings=settings)
    consumer.run(handler)
    assert seen == [1, 2]


FORK_AMID_ITERATION = """
import os, sys
from pumpline.sync import Consumer
consumer = Consumer(sys.argv[2], "ch", nsqd=sys.argv[1])
messages = iter(consumer)
first = next(messages)
child = os.fork()
if child == 0:
    try:
        next(messages)
    except RuntimeError as error:
        print("told:", error, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
first.finish()
next(messages).finish()
print("parent goes on", flush=True)
"""


def test_a_child_forked_amid_an_iteration_ends_and_the_parent_goes_on(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(300))
    printed = run(FORK_AMID_ITERATION, nsqd.tcp_address, topic)
    assert "told: this iteration belongs to the process that began it" in printed
    assert "parent goes on" in printed
    wait_until(lambda: left(nsqd, topic) == 298)


SIGNALS = """
import signal, sys
from pumpline.sync import Producer
producer = Producer(sys.argv[1])
count = 0
def on_signal(*_):
    global count
    signal.setitimer(signal.ITIMER_REAL, 0)
    producer.publish(sys.argv[2], b"from the handler")
    count += 1
    if count < 600:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + count % 7 * 0.00003)
signal.signal(signal.SIGALRM, on_signal)
signal.setitimer(signal.ITIMER_REAL, 0.0001)
total = 0
while count < 600:
    producer.publish(sys.argv[2], b"m")
    total += 1
producer.close()
print(total + count)
"""


def test_a_signal_handler_may_publish_at_any_moment(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [])
    total = int(run(SIGNALS, nsqd.tcp_address, topic))
    wait_until(lambda: left(nsqd, topic) == total)


SIGNAL_AT_EVERY_LINE = """
import faulthandler, os, signal, sys
from pumpline.sync import Producer

def publish_with_a_signal_at(line):
    producer = Producer(sys.argv[1])
    lines = 0
    def on_signal(*_):
        producer.publish(sys.argv[2], b"from the handler")
    def trace(frame, event, argument):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == line:
                signal.raise_signal(signal.SIGALRM)
        return trace
    signal.signal(signal.SIGALRM, on_signal)
    sys.settrace(trace)
    producer.publish(sys.argv[2], b"m")
    sys.settrace(None)
    producer.close()
    return lines >= line

line = 1
while True:
    child = os.fork()  # without the thread of the loop, which each has to start
    if not child:
        faulthandler.dump_traceback_later(30, exit=True)
        os._exit(2 if publish_with_a_signal_at(line) else 0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 2:
        break
    line += 1
assert code == 0, f"line {line}: {code}"
print(2 * (line - 1) + 1)
"""


def test_a_signal_handler_may_publish_at_every_line_of_the_first_publish(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [])
    total = int(run(SIGNAL_AT_EVERY_LINE, nsqd.tcp_address, topic))
    assert total > 2 * 50
    wait_until(lambda: left(nsqd, topic) == total)


INTERRUPTS = """
import signal, sys
from pumpline.sync import Producer
producer = Producer(sys.argv[1])
producer.start()
def on_signal(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, on_signal)
interrupted = 0
for round in range(1500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00005 + round % 50 * 0.00001)
        for _ in range(100):  # not for ever: Python drops an exception in a weakref's callback
            producer.publish(sys.argv[2], b"m")
    except KeyboardInterrupt:
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
producer.publish(sys.argv[2], b"last")
producer.close()
print(interrupted)
"""


def test_an_interrupted_publish_leaves_the_others_alone(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [])
    assert int(run(INTERRUPTS, nsqd.tcp_address, topic)) > 1000


def test_what_runs_on_its_own_loop_is_told_and_nothing_hangs(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"m"])
    producer = Producer(nsqd.tcp_address)
    producer.start()
    told: list[str] = []

    async def give_up(message: Message) -> None:
        for call in (
            lambda: producer.publish(topic, message.body),
            lambda: producer.publish_many(topic, [message.body]),
            producer.close,
        ):
            with pytest.raises(RuntimeError) as error:
                call()
            told.append(str(error.value))

    settings = Settings(requeue_delay_s=0, backoff_max_s=0)
    with Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        max_attempts=1,
        giving_up=give_up,
        settings=settings,
    ) as consumer:
        next(iter(consumer)).requeue(0)
        list(consumer.messages(idle_s=0.2))
        wait_until(lambda: len(told) == 3)
    assert set(told) == {"called on the event loop of pumpline.sync: it would wait for itself"}


@pytest.mark.parametrize("many", [False, True])
async def test_inside_an_event_loop_it_says_so(nsqd: Nsqd, topic: str, many: bool) -> None:
    with pytest.warns(RuntimeWarning, match="blocks the event loop") as warned:
        producer = Producer(nsqd.tcp_address)
        if many:
            producer.publish_many(topic, [b"m"])
        else:
            producer.publish(topic, b"m")
    assert {warning.filename for warning in warned} == {__file__}

    def elsewhere() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            producer.publish(topic, b"m")
            producer.close()

    await asyncio.to_thread(elsewhere)
