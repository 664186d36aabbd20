"""The line protocol between a test and the process that runs one client library.

| direction | line                                                                              |
|-----------|-----------------------------------------------------------------------------------|
| in        | {"op": name, ...arguments}, one at a time; end of input means: leave with code 0   |
| out       | {"event": "done"} when the operation is complete, or {"event": "failed", "reason"}  |
| out       | {"event": "message", "consumer", "id", "attempts", "body"} at each delivery         |
| out       | {"event": "error", "consumer", "text"} at each error frame                          |

Bodies travel in base64. Operations are the methods of `Client`, for all libraries the same. Knows
no client library and nothing of nsqd, and is imported by the drivers alone.
"""

from __future__ import annotations

import base64
import json
import sys
import traceback
from typing import Any, Protocol, TypedDict


class Subscription(TypedDict):
    """What a test asks of a consumer; a library that lacks an option leaves it out."""

    topic: str
    channel: str
    max_in_flight: int
    auto_finish: bool
    msg_timeout_ms: int
    heartbeat_interval_s: int
    deflate: bool
    lookupd_http_addresses: list[str]  # to find nsqds by, if any; else the driver's argument is one


class Wrapping(TypedDict, total=False):
    """What a driver's second argument asks of all its connections, in JSON."""

    tls: bool  # with whatever certificate the server has
    snappy: bool
    deflate: bool
    auth_secret: str


class Client(Protocol):
    """The operations of a driver. Those of the asyncio drivers are coroutines."""

    def publish(self, topic: str, bodies: list[bytes]) -> Any: ...
    def multi_publish(self, topic: str, bodies: list[bytes]) -> Any: ...
    def deferred_publish(self, topic: str, body: bytes, defer_ms: int) -> Any: ...
    def consume(self, consumer: str, subscription: Subscription) -> Any: ...
    def finish(self, consumer: str, message_id: str) -> Any: ...
    def requeue(self, consumer: str, message_id: str, delay_ms: int) -> Any: ...
    def touch(self, consumer: str, message_id: str) -> Any: ...
    def close(self, consumer: str) -> Any: ...


def wrapping() -> Wrapping:
    asked: Wrapping = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    return asked


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def emit_message(consumer: str, message_id: bytes | str, attempts: int, body: bytes) -> None:
    shown = message_id if isinstance(message_id, str) else message_id.decode()
    encoded = base64.b64encode(body).decode()
    emit("message", consumer=consumer, id=shown, attempts=attempts, body=encoded)


def emit_failure() -> None:
    emit("failed", reason=traceback.format_exc())


def start(client: Client, line: str) -> Any:
    """Calls the operation that a line names; an asyncio driver awaits what comes back."""
    arguments = json.loads(line)
    operation = arguments.pop("op")
    if "bodies" in arguments:
        arguments["bodies"] = [base64.b64decode(body) for body in arguments["bodies"]]
    if "body" in arguments:
        arguments["body"] = base64.b64decode(arguments["body"])
    return getattr(client, operation)(**arguments)


async def serve_asyncio(client: Client) -> None:
    import asyncio  # not needed, and not wanted, in a gevent process

    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            await start(client, line)
        except Exception:
            emit_failure()
        else:
            emit("done")
