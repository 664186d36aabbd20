"""Runs gnsq (gevent) under the line protocol of control.py; the argument is nsqd's host:port."""

from __future__ import annotations

import gevent.monkey

gevent.monkey.patch_all()

import sys  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import gnsq  # noqa: E402
from control import Subscription, emit, emit_failure, emit_message, start, wrapping  # noqa: E402

BACKOFF_MAX_S = 1  # the default is 128
CLOSE_TIMEOUT_S = 10


class GnsqClient:
    def __init__(self, tcp_address: str) -> None:
        self.tcp_address = tcp_address
        # No TLS: it calls the constructor of SSLSocket, which is gone.
        asked = wrapping()
        self.connection: dict[str, Any] = {
            "snappy": asked.get("snappy", False),
            "auth_secret": asked.get("auth_secret", "").encode() or None,
        }
        self.deflate = asked.get("deflate", False)
        self.producer: gnsq.Producer | None = None
        self.consumers: dict[str, gnsq.Consumer] = {}
        self.held: dict[tuple[str, str], gnsq.Message] = {}

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        producer = self._started_producer()
        answers = [producer.publish(topic, body, raise_error=False) for body in bodies]
        for answer in answers:
            answer.get()

    def multi_publish(self, topic: str, bodies: list[bytes]) -> None:
        self._started_producer().multipublish(topic, bodies)

    def deferred_publish(self, topic: str, body: bytes, defer_ms: int) -> None:
        self._started_producer().publish(topic, body, defer=defer_ms)

    def consume(self, consumer: str, subscription: Subscription) -> None:
        # gnsq 1.0.2 cannot ask for a message timeout; it takes the daemon's --msg-timeout.
        started = gnsq.Consumer(
            subscription["topic"],
            subscription["channel"],
            nsqd_tcp_addresses=[self.tcp_address],
            max_in_flight=subscription["max_in_flight"],
            max_backoff_duration=BACKOFF_MAX_S,
            heartbeat_interval=subscription["heartbeat_interval_s"],
            deflate=subscription["deflate"] or self.deflate,
            **self.connection,
        )

        def on_message(_: gnsq.Consumer, message: gnsq.Message) -> None:
            emit_message(consumer, message.id, message.attempts, message.body)
            if not subscription["auto_finish"]:
                message.enable_async()
                self.held[consumer, message.id.decode()] = message

        def on_error(_: gnsq.Consumer, error: Exception) -> None:
            emit("error", consumer=consumer, text=str(error))

        started.on_message.connect(on_message, weak=False)
        started.on_error.connect(on_error, weak=False)
        started.start(block=False)
        self.consumers[consumer] = started

    def finish(self, consumer: str, message_id: str) -> None:
        self.held.pop((consumer, message_id)).finish()

    def requeue(self, consumer: str, message_id: str, delay_ms: int) -> None:
        self.held.pop((consumer, message_id)).requeue(delay_ms)

    def touch(self, consumer: str, message_id: str) -> None:
        self.held[consumer, message_id].touch()

    def close(self, consumer: str) -> None:
        closing = self.consumers.pop(consumer)
        closing.close()
        closing.join(CLOSE_TIMEOUT_S)

    def _started_producer(self) -> gnsq.Producer:
        if self.producer is None:
            # Plain: it takes the OK of an upgrade for the answer to a publish, and stumbles.
            secret = self.connection["auth_secret"]
            self.producer = gnsq.Producer([self.tcp_address], auth_secret=secret)
            self.producer.start()
        return self.producer


def serve(client: Any) -> None:
    # A blocking read would stop every greenlet, so it is made in a native thread.
    read_line = gevent.get_hub().threadpool.apply
    while line := read_line(sys.stdin.readline):
        try:
            start(client, line)
        except Exception:
            emit_failure()
        else:
            emit("done")


if __name__ == "__main__":
    serve(GnsqClient(sys.argv[1]))
