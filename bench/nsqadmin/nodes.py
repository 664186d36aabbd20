"""Many nsqds with many topics, in one process: answers like those of a real one, made in advance.

    python -m bench.nsqadmin.nodes NODES TOPICS CHANNELS

Prints the addresses, one a line. /stats of every node has the same topics, in the fields of a Go
nsqd. The counters of every tenth topic by name rise with the time, so that an open page has
something to show wherever it looks. A node is cheap here, so that what is measured is nsqadmin.
"""

import asyncio
import json
import sys
import time
from typing import Any

MOVING_EVERY = 10  # topics by name, of which one moves
NAME = "topic_name"
RATE = 40  # messages a second, of a topic that moves, on each node


def channel(number: int, count: int) -> dict[str, Any]:
    return {
        "channel_name": f"channel-{number:02}",
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": count,
        "requeue_count": 0,
        "timeout_count": 0,
        "client_count": 1,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def topic(number: int, channels: int, count: int) -> dict[str, Any]:
    return {
        NAME: f"team-{number % 40:02}.events.{number:05}",
        "channels": [channel(each, count) for each in range(channels)],
        "depth": 0,
        "backend_depth": 0,
        "message_count": count,
        "message_bytes": 100 * count,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def name(made: dict[str, Any]) -> str:
    return str(made[NAME])


class Nodes:
    def __init__(self, topics: int, channels: int) -> None:
        self._channels = channels
        self._started_s = int(time.time())
        by_name = sorted((topic(each, channels, 1_000_000) for each in range(topics)), key=name)
        self._moving = [name(each) for each in by_name[::MOVING_EVERY]]
        still = [each for place, each in enumerate(by_name) if place % MOVING_EVERY]
        self._still = json.dumps(still, separators=(",", ":")).encode()[1:-1]
        self._made: tuple[int, bytes] = (0, b"")

    def stats(self) -> bytes:
        """Of now, in whole seconds: the nodes of one poll share it."""
        elapsed_s = int(time.time()) - self._started_s
        if self._made[0] != elapsed_s or not self._made[1]:
            count = 1_000_000 + RATE * elapsed_s
            moving = [{**topic(0, self._channels, count), NAME: each} for each in self._moving]
            head = {"version": "1.3.0", "health": "OK", "start_time": self._started_s}
            text = json.dumps({**head, "topics": moving}, separators=(",", ":")).encode()
            rest = b"," + self._still if self._still else b""
            self._made = elapsed_s, text[:-2] + rest + b"]}"
        return self._made[1]

    def answer(self, path: str, port: int) -> tuple[int, bytes]:
        if path == "/stats":
            return 200, self.stats()
        if path == "/info":
            address = {"broadcast_address": "127.0.0.1", "http_port": port, "tcp_port": port}
            return 200, json.dumps({"version": "1.3.0", "hostname": "bench", **address}).encode()
        return 404, b'{"message":"NOT_FOUND"}'

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                path = line.split()[1].decode().partition("?")[0]
                status, body = self.answer(path, port)
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
                writer.write(body)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def main() -> None:
    count, topics, channels = map(int, sys.argv[1:])
    nodes = Nodes(topics, channels)
    for _ in range(count):
        server = await asyncio.start_server(nodes.serve, "127.0.0.1", 0)
        print("{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    print(flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
