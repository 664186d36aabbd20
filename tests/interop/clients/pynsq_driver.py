"""Runs pynsq (tornado) under the line protocol of control.py; the argument is nsqd's host:port."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import nsq
from control import Subscription, emit, emit_message, serve_asyncio, wrapping

POLL_S = 0.01
LOOKUPD_POLL_S = 1
BACKOFF_MAX_S = 1  # the default of 128 makes the first back-off 3.6 s


class PynsqClient:
    def __init__(self, tcp_address: str) -> None:
        self.tcp_address = tcp_address
        asked = wrapping()
        self.connection: dict[str, Any] = {
            "tls_v1": asked.get("tls", False),
            "tls_options": {"cert_reqs": ssl.CERT_NONE},
            "snappy": asked.get("snappy", False),
            "auth_secret": asked.get("auth_secret"),
        }
        self.writer: nsq.Writer | None = None
        self.readers: dict[str, nsq.Reader] = {}
        self.held: dict[tuple[str, str], nsq.Message] = {}

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        writer = await self._connected_writer()
        await asyncio.gather(*(answered(writer.pub, topic, body) for body in bodies))

    async def multi_publish(self, topic: str, bodies: list[bytes]) -> None:
        writer = await self._connected_writer()
        await answered(writer.mpub, topic, bodies)

    async def deferred_publish(self, topic: str, body: bytes, defer_ms: int) -> None:
        writer = await self._connected_writer()
        await answered(writer.dpub, topic, defer_ms, body)

    async def consume(self, consumer: str, subscription: Subscription) -> None:
        # No deflate: with tornado 6 it drops the connection (nsqio/pynsq issue 258).
        lookupds = subscription["lookupd_http_addresses"]
        reader = nsq.Reader(
            topic=subscription["topic"],
            channel=subscription["channel"],
            message_handler=partial(self._on_message, consumer, subscription["auto_finish"]),
            nsqd_tcp_addresses=None if lookupds else [self.tcp_address],
            lookupd_http_addresses=lookupds,
            lookupd_poll_interval=LOOKUPD_POLL_S,
            max_in_flight=subscription["max_in_flight"],
            max_backoff_duration=BACKOFF_MAX_S,
            msg_timeout=subscription["msg_timeout_ms"] / 1000,
            heartbeat_interval=subscription["heartbeat_interval_s"],
            **self.connection,
        )
        self.readers[consumer] = reader
        while not reader.conns:
            await asyncio.sleep(POLL_S)
        for connection in reader.conns.values():
            connection.on("error", partial(on_error, consumer))

    async def finish(self, consumer: str, message_id: str) -> None:
        self.held.pop((consumer, message_id)).finish()

    async def requeue(self, consumer: str, message_id: str, delay_ms: int) -> None:
        self.held.pop((consumer, message_id)).requeue(delay=delay_ms // 1000)

    async def touch(self, consumer: str, message_id: str) -> None:
        self.held[consumer, message_id].touch()

    async def close(self, consumer: str) -> None:
        reader = self.readers.pop(consumer)
        reader.close()
        while reader.conns:
            await asyncio.sleep(POLL_S)

    async def _connected_writer(self) -> nsq.Writer:
        if self.writer is None:
            self.writer = nsq.Writer([self.tcp_address], **self.connection)
        while not self.writer.conns:
            await asyncio.sleep(POLL_S)
        return self.writer

    def _on_message(self, consumer: str, auto_finish: bool, message: nsq.Message) -> bool | None:
        emit_message(consumer, message.id, message.attempts, message.body)
        if auto_finish:
            return True
        message.enable_async()
        self.held[consumer, message.id.decode()] = message
        return None


async def answered(send: Callable[..., Any], *arguments: Any) -> None:
    """Sends a publish and waits for nsqd's answer, which pynsq gives to a callback."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    send(*arguments, callback=lambda _connection, data: answer.set_result(data))
    if (data := await answer) != b"OK":
        raise RuntimeError(f"publish was answered with {data!r}")


def on_error(consumer: str, error: nsq.Error, **_: Any) -> None:
    # Its subclasses are pynsq's own complaints, such as at its own close; this is an error frame.
    if type(error) is nsq.Error:
        emit("error", consumer=consumer, text=str(error))


async def main() -> None:
    await serve_asyncio(PynsqClient(sys.argv[1]))


if __name__ == "__main__":
    asyncio.run(main())
