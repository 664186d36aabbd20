"""Load for crash tests: producers and consumers in threads, that enter all they do in a ledger.

A `Load` belongs to one run of a daemon: it begins with new connections and ends when the daemon is
gone or `stop` is called. What each thread does is drawn from a seeded generator; only the threads'
interleaving is left to chance.
"""

import random
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

from tests.kit.crash.killable_nsqd import mpub_body
from tests.kit.crash.ledger import Ledger, Settlement
from tests.kit.daemons import FRAME_ERROR, FRAME_MESSAGE, MESSAGE_HEADER, Nsqd, RawClient

PACE_S = 0.01  # between two bursts of one producer
IDLE_S = 0.02  # a consumer without messages answers what it has
BURST_MAX = 100
DELAY_MS_MAX = 2500
READY = 200
HELD_MAX = 60
ANSWERS_MAX = 40


def mpub(ledger: Ledger, rng: random.Random, topic: str, bodies: Sequence[bytes]) -> bytes:
    for body in bodies:
        ledger.sending(topic, body)
    packed = mpub_body(bodies)
    return f"MPUB {topic}\n".encode() + struct.pack(">i", len(packed)) + packed


def pubs(ledger: Ledger, rng: random.Random, topic: str, bodies: Sequence[bytes]) -> bytes:
    for body in bodies:
        ledger.sending(topic, body)
    line = f"PUB {topic}\n".encode()
    return b"".join(line + struct.pack(">i", len(body)) + body for body in bodies)


def dpubs(ledger: Ledger, rng: random.Random, topic: str, bodies: Sequence[bytes]) -> bytes:
    parts = []
    for body in bodies:
        delay_ms = rng.choice((0, 50, 400, rng.randrange(1, DELAY_MS_MAX)))
        ledger.sending(topic, body, delay_ms=delay_ms)
        parts.append(f"DPUB {topic} {delay_ms}\n".encode() + struct.pack(">i", len(body)) + body)
    return b"".join(parts)


VERBS = {"mpub": mpub, "pub": pubs, "dpub": dpubs}


class Load:
    def __init__(self, nsqd: Nsqd, ledger: Ledger, seed: int) -> None:
        self._nsqd = nsqd
        self._ledger = ledger
        self._seed = seed
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def publish(self, verb: str, topics: Sequence[str]) -> None:
        """Starts a producer that publishes bursts to these topics in turn."""
        self._start(self._produce, verb, topics)

    def consume(self, topic: str, channel: str, *, finish_all: bool = False) -> None:
        """Starts a consumer; unless it is to finish all, it requeues and holds some."""
        self._start(self._consume, topic, channel, finish_all)

    def stop(self) -> None:
        """Ends all threads; a daemon that is still there is left with what was in flight."""
        self._stop.set()
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), thread.name

    def _start(self, target: Callable[..., None], *args: object) -> None:
        name = f"{self._ledger.run}-{len(self._threads)}"
        rng = random.Random(f"{self._seed}-{name}")
        client = self._nsqd.connect()

        def run() -> None:
            with client:
                try:
                    target(client, rng, name, *args)
                except (EOFError, OSError) as error:
                    if isinstance(error, TimeoutError):
                        self._ledger.faults.append(f"{target.__name__} {args}: no answer")
                except Exception as error:  # a thread's root: the test must learn of it
                    self._ledger.faults.append(f"{target.__name__} {args}: {error!r}")

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def _produce(
        self, client: RawClient, rng: random.Random, name: str, verb: str, topics: Sequence[str]
    ) -> None:
        make = VERBS[verb]
        number = 0
        while not self._stop.is_set():
            topic = rng.choice(topics)
            count = rng.randrange(1, BURST_MAX)
            bodies = [
                b"%s-%s-%d" % (verb.encode(), name.encode(), number + n) for n in range(count)
            ]
            number += count
            client.send(make(self._ledger, rng, topic, bodies))
            if verb == "mpub":
                assert client.read_response() == b"OK"
                self._ledger.acknowledge(topic, bodies)
            else:
                for body in bodies:
                    assert client.read_response() == b"OK"
                    self._ledger.acknowledge(topic, [body])
            self._stop.wait(PACE_S)

    def _consume(
        self,
        client: RawClient,
        rng: random.Random,
        name: str,
        topic: str,
        channel: str,
        finish_all: bool,
    ) -> None:
        client.sub(topic, channel)
        client.rdy(READY)
        answers = _Answers(client, self._ledger, topic, channel)
        held = 0
        while not self._stop.is_set():
            try:
                kind, data = client.read_frame(IDLE_S)
            except TimeoutError:
                answers.send()
                continue
            if kind == FRAME_MESSAGE:
                _, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
                body = data[MESSAGE_HEADER.size :]
                self._ledger.receive(topic, channel, body, attempts)
                choice = 0.0 if finish_all else rng.random()
                if choice < 0.75:
                    answers.add(message_id, body, delay_ms=None)
                elif choice < 0.95 or held >= HELD_MAX:
                    delays_ms = (0, 100, rng.randrange(1, DELAY_MS_MAX))
                    answers.add(message_id, body, delay_ms=rng.choice(delays_ms))
                else:
                    held += 1
            elif kind == FRAME_ERROR:
                answers.confirm(data)
            elif data == b"_heartbeat_":
                client.send_command("NOP")
        answers.send()


class _Answers:
    """A consumer's FINs and REQs, sent in groups, each with a barrier that tells it was done."""

    def __init__(self, client: RawClient, ledger: Ledger, topic: str, channel: str) -> None:
        self._client = client
        self._ledger = ledger
        self._topic = topic
        self._channel = channel
        self._lines: list[bytes] = []
        self._group: list[tuple[bytes, Settlement]] = []
        self._sent: deque[tuple[bytes, list[tuple[bytes, Settlement]]]] = deque()
        self._number = 0

    def add(self, message_id: bytes, body: bytes, *, delay_ms: int | None) -> None:
        settlement = self._ledger.settle(self._topic, self._channel, body, delay_ms=delay_ms)
        self._group.append((body, settlement))
        verb, delay = (b"FIN", b"") if delay_ms is None else (b"REQ", b" %d" % delay_ms)
        self._lines.append(b"%s %s%s\n" % (verb, message_id, delay))
        if len(self._lines) >= ANSWERS_MAX:
            self.send()

    def send(self) -> None:
        if not self._lines:
            return
        self._number += 1
        barrier = b"barrier-%08d" % self._number
        self._sent.append((barrier, self._group))
        self._client.send(b"".join(self._lines) + b"FIN %s\n" % barrier)
        self._lines, self._group = [], []

    def confirm(self, error: bytes) -> None:
        """An error frame came: it must be the answer to the oldest barrier."""
        barrier, group = self._sent.popleft()
        assert error == b"E_FIN_FAILED FIN %s failed ID not in flight" % barrier, error
        self._ledger.confirm(self._topic, self._channel, group)
