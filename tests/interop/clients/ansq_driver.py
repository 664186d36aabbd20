"""Runs ansq (asyncio) under the line protocol of control.py; the argument is nsqd's host:port."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import ansq
from control import Subscription, emit, emit_message, serve_asyncio


class AnsqClient:
    def __init__(self, tcp_address: str) -> None:
        self.tcp_address = tcp_address
        self.writer: Any = None
        self.readers: dict[str, tuple[Any, asyncio.Task[None]]] = {}
        self.held: dict[tuple[str, str], Any] = {}

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        writer = await self._connected_writer()
        answers = await asyncio.gather(*(writer.pub(topic, body) for body in bodies))
        for answer in answers:
            expect_ok(answer)

    async def multi_publish(self, topic: str, bodies: list[bytes]) -> None:
        writer = await self._connected_writer()
        expect_ok(await writer.mpub(topic, *bodies))

    async def deferred_publish(self, topic: str, body: bytes, defer_ms: int) -> None:
        writer = await self._connected_writer()
        expect_ok(await writer.dpub(topic, body, defer_ms))

    async def consume(self, consumer: str, subscription: Subscription) -> None:
        # ansq 0.3.0 has no compression; the test does not ask for it.
        features = ansq.ConnectionFeatures(
            msg_timeout=subscription["msg_timeout_ms"],
            heartbeat_interval=subscription["heartbeat_interval_s"] * 1000,
        )
        reader = await ansq.create_reader(
            topic=subscription["topic"],
            channel=subscription["channel"],
            nsqd_tcp_addresses=[self.tcp_address],
            connection_options=ansq.ConnectionOptions(
                features=features, logger=error_logger(consumer)
            ),
        )
        for connection in reader.connections:
            await connection.rdy(subscription["max_in_flight"])
        reading = asyncio.create_task(self._read(consumer, reader, subscription["auto_finish"]))
        self.readers[consumer] = (reader, reading)

    async def finish(self, consumer: str, message_id: str) -> None:
        await self.held.pop((consumer, message_id)).fin()

    async def requeue(self, consumer: str, message_id: str, delay_ms: int) -> None:
        await self.held.pop((consumer, message_id)).req(delay_ms)

    async def touch(self, consumer: str, message_id: str) -> None:
        await self.held[consumer, message_id].touch()

    async def close(self, consumer: str) -> None:
        reader, reading = self.readers.pop(consumer)
        await reader.close()
        reading.cancel()

    async def _connected_writer(self) -> Any:
        if self.writer is None:
            self.writer = await ansq.create_writer(nsqd_tcp_addresses=[self.tcp_address])
        return self.writer

    async def _read(self, consumer: str, reader: Any, auto_finish: bool) -> None:
        async for message in reader.messages():
            emit_message(consumer, message.id, message.attempts, message.body)
            if auto_finish:
                await message.fin()
            else:
                self.held[consumer, message.id] = message


class ErrorEvents(logging.Handler):
    """ansq only logs the error frames that answer FIN, REQ and TOUCH."""

    def __init__(self, consumer: str) -> None:
        super().__init__(logging.ERROR)
        self.consumer = consumer

    def emit(self, record: logging.LogRecord) -> None:
        emit("error", consumer=self.consumer, text=record.getMessage())


def error_logger(consumer: str) -> logging.Logger:
    logger = logging.getLogger(f"ansq consumer {consumer}")
    logger.addHandler(ErrorEvents(consumer))
    return logger


def expect_ok(answer: Any) -> None:
    if not answer.is_ok:
        raise RuntimeError(f"publish was answered with {answer!r}")


async def main() -> None:
    await serve_asyncio(AnsqClient(sys.argv[1]))


if __name__ == "__main__":
    asyncio.run(main())
