"""A client that minds its own business while others attack: what it publishes, it receives.

Runs in threads of its own, on a topic that nobody else knows, and never sends faster than it is
answered. `finish` says whether anything was lost, doubled or refused.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.kit.daemons import Nsqd, RawClient

TOPIC = "bystander"
CHANNEL = "ch"
LAST = b"last"
READY = 100
PER_TURN = 5
WAIT_S = 60.0

Publish = Callable[[list[bytes]], None]


class Bystander:
    def __init__(self, nsqd: Nsqd, publish: Publish | None = None) -> None:
        """`publish` takes another way than TCP."""
        self._producer = nsqd.connect()
        self._consumer = nsqd.connect()
        self._publish = publish or self._publish_on(self._producer)
        self._sent: list[bytes] = []
        self._received: list[bytes] = []
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(job,)) for job in self._jobs()
        ]

    def __enter__(self) -> Self:
        self._consumer.sub(TOPIC, CHANNEL)
        self._consumer.rdy(READY)
        for thread in self._threads:
            thread.start()
        assert self._begun.wait(WAIT_S), "nothing came"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
        self._producer.close()
        self._consumer.close()
        if error is None:
            self._check()

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]
        assert self._received == self._sent

    def _jobs(self) -> tuple[Callable[[], None], Callable[[], None]]:
        return self._produce, self._consume

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._errors.append(error)
            self._begun.set()
            self._stop.set()

    def _produce(self) -> None:
        while not self._stop.is_set():
            self._send([b"%d" % (len(self._sent) + n) for n in range(PER_TURN)])
        self._send([LAST])

    def _send(self, bodies: list[bytes]) -> None:
        self._publish(bodies)
        self._sent += bodies

    def _consume(self) -> None:
        while not self._received or self._received[-1] != LAST:
            message = self._consumer.read_message(WAIT_S)
            self._received.append(message.body)
            self._begun.set()
            self._consumer.fin(message.id)

    @staticmethod
    def _publish_on(client: RawClient) -> Publish:
        """All by themselves but the last two, which go together."""

        def publish(bodies: list[bytes]) -> None:
            for body in bodies[:-2]:
                client.publish(TOPIC, body)
            client.mpub(TOPIC, bodies[-2:])

        return publish
