"""Virtual nsqds and nsqlookupds: what the Spark source asks them over HTTP, answered from memory.

A node has logs, which keep their ids through restarts and changes of ports. It may be down, or drop
packets; its retention may delete what no hold keeps; it may be put back to a backup. `SimHttp`
takes the place of HttpClientConnection, and costs virtual time: a request that is dropped costs its
time-out. Knows formats; must not know what is right.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from pumpline.client.http_connection import HttpRequestError
from pumpline.core.messages.batches import Builder
from pumpline.core.messages.frame import encode_message
from tests.kit.logs import bytes_of

REQUEST_S = 0.001
RAW_ROWS_MAX = 4  # in an answer of /log/raw, so that a range takes several


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def now_ns(self) -> int:
        return round(self.now_s * 1000) * 1_000_000


@dataclass(slots=True)
class SimLog:
    id: str
    first: int = 0
    messages: list[tuple[int, bytes]] = field(default_factory=list)  # from offset 0 on
    holds: dict[str, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.messages)

    def copy(self) -> "SimLog":
        return SimLog(self.id, self.first, list(self.messages), dict(self.holds))


@dataclass(slots=True)
class SimNode:
    number: int
    tcp_port: int
    http_port: int
    is_up: bool = True
    drops: bool = False  # packets
    starts: int = 0
    has_deleted: bool = False  # a topic, so that its place in a checkpoint tells its name only
    logs: dict[str, SimLog] = field(default_factory=dict)
    backup: dict[str, SimLog] | None = None

    @property
    def host(self) -> str:
        return f"node{self.number}"

    @property
    def name(self) -> str:
        return f"{self.host}:{self.tcp_port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def answers(self) -> bool:
        return self.is_up and not self.drops


@dataclass(slots=True)
class SimLookupd:
    """Remembers nodes that went away, as nsqlookupd with --data-path does."""

    number: int
    is_up: bool = True
    lost: dict[str, tuple[SimNode, int]] = field(default_factory=dict)  # by host

    @property
    def address(self) -> str:
        return f"http://lookupd{self.number}:4161"


class Refusal(Exception):
    def __init__(self, status: int, code: str, **details: object) -> None:
        super().__init__(code)
        self.status = status
        self.body = {"message": code, **details}


class Cluster:
    def __init__(self, nodes: int, lookupds: int) -> None:
        self.clock = Clock()
        self.nodes = [SimNode(n, 4150, 4151) for n in range(nodes)]
        self.lookupds = [SimLookupd(n) for n in range(lookupds)]
        self._logs = 0

    # -- what happens to it -------------------------------------------------------------------

    def publish(self, node: SimNode, topic: str, bodies: list[bytes]) -> SimLog:
        log = node.logs.get(topic)
        if log is None:
            self._logs += 1
            log = node.logs[topic] = SimLog(f"{self._logs:016x}")
        for body in bodies:
            self.clock.now_s += 0.001
            log.messages.append((self.clock.now_ns(), body))
        return log

    def stop(self, node: SimNode) -> None:
        node.is_up = False
        for lookupd in self.lookupds:
            lookupd.lost[node.host] = (node, self.clock.now_ns())

    def start(self, node: SimNode) -> None:
        node.is_up = True
        node.starts += 1
        for lookupd in self.lookupds:
            lookupd.lost.pop(node.host, None)

    def put_back(self, node: SimNode) -> None:
        """To the backup, while it is down; holds are as they were then."""
        node.logs = {topic: log.copy() for topic, log in (node.backup or {}).items()}
        self.start(node)

    # -- HTTP -----------------------------------------------------------------------------------

    def answer(self, origin: str, target: str) -> tuple[dict[str, str], bytes]:
        """The headers and body of a reply; None if nobody is there."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        for lookupd in self.lookupds:
            if lookupd.address == origin and lookupd.is_up:
                return {}, json.dumps(self._look_up(lookupd, parts.path, query)).encode()
        for node in self.nodes:
            if node.address == origin and node.answers:
                if parts.path == "/log/raw":
                    return self._raw(node, query)
                return {}, json.dumps(self._ask(node, parts.path, query)).encode()
        raise ConnectionRefusedError

    def drops(self, origin: str) -> bool:
        return any(node.address == origin and node.is_up and node.drops for node in self.nodes)

    def _look_up(self, lookupd: SimLookupd, path: str, query: dict[str, str]) -> object:
        topic = query.get("topic")

        def has(node: SimNode) -> bool:
            return topic is None or topic in node.logs

        up = [node for node in self.nodes if node.is_up and has(node)]
        lost = [(node, at) for node, at in lookupd.lost.values() if has(node)]
        if topic is not None and not up and not lost:
            raise Refusal(404, "TOPIC_NOT_FOUND")
        reply: dict[str, object] = {"producers": [_producer(node) for node in up]}
        if path == "/lookup":
            reply["channels"] = []
        if query.get("lost") == "true":
            reply["lost"] = [
                {**_producer(node), "lost_at": at, "topics": sorted(node.logs)} for node, at in lost
            ]
        return reply

    def _ask(self, node: SimNode, path: str, query: dict[str, str]) -> object:
        if path == "/log/offsets" and "topic" not in query:
            states = [self._state(node, topic) for topic in sorted(node.logs)]
            return {"node": node.name, "topics": states}
        log = self._log(node, query)
        if path == "/log/offsets":
            if "time" in query:
                found = (n for n, (at, _) in enumerate(log.messages) if at >= int(query["time"]))
                return {"offset": max(next(found, log.end), log.first)}
            return {"node": node.name, **self._state(node, query["topic"])}
        if path == "/log/peek":
            offset = max(int(query["from"]), log.first)
            there = log.messages[offset : offset + 1]
            return {"messages": [{"offset": offset, "timestamp": at} for at, _ in there]}
        if path == "/hold/create":
            return {"offset": log.holds.setdefault(query["hold"], int(query["offset"]))}
        if path == "/hold/commit":
            if query["hold"] not in log.holds:
                raise Refusal(404, "HOLD_NOT_FOUND")
            at = log.holds[query["hold"]] = max(log.holds[query["hold"]], int(query["offset"]))
            return {"offset": at}
        raise AssertionError(path)

    def _state(self, node: SimNode, topic: str) -> dict[str, object]:
        log = node.logs[topic]
        return {
            "topic": topic,
            "log": log.id,
            "first": log.first,
            "end": log.end,
            "bytes": sum(len(body) + 34 for _, body in log.messages[log.first :]),
            "timestamp": self.clock.now_ns(),
            "started": f"{node.number}.{node.starts}",
        }

    def _raw(self, node: SimNode, query: dict[str, str]) -> tuple[dict[str, str], bytes]:
        log = self._log(node, query)
        start, end = int(query["from"]), int(query["to"])
        if query["log"] != log.id:
            raise Refusal(409, "LOG_CHANGED", log=log.id)
        if start < log.first:
            raise Refusal(410, "OFFSET_GONE", first=log.first)
        if start >= log.end:
            raise Refusal(416, "OFFSET_BEYOND_END", end=log.end)
        stop = min(end, log.end, start + RAW_ROWS_MAX)
        builder = Builder(first=start, timestamp_ns=log.messages[start][0])
        for offset, (at_ns, body) in enumerate(log.messages[start:stop], start):
            message_id = (int(log.id, 16) << 32) + offset
            builder.add(
                encode_message(timestamp_ns=at_ns, attempts=1, message_id=message_id, body=body)
            )
        data = bytes_of(builder.seal())
        return {"Content-Length": str(len(data)), "X-Pumpline-To": str(stop)}, data

    def _log(self, node: SimNode, query: dict[str, str]) -> SimLog:
        log = node.logs.get(query["topic"])
        if log is None:
            raise Refusal(404, "TOPIC_NOT_FOUND")
        return log


def _producer(node: SimNode) -> dict[str, object]:
    return {
        "broadcast_address": node.host,
        "hostname": node.host,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": "1.3.0",
    }


class SimHttp:
    """In place of HttpClientConnection."""

    cluster: Cluster
    step: Callable[[], None]

    def __init__(self, origin: str, *, timeout_s: float, **_: object) -> None:
        self._origin = origin
        self._timeout_s = timeout_s
        self._target = ""
        self._headers: dict[str, str] = {}
        self._body = b""
        self.is_open = False

    def send(self, method: str, target: str, **_: object) -> None:
        self.step()
        self._target = target

    def receive(self) -> int:
        cluster = self.cluster
        cluster.clock.now_s += REQUEST_S
        if cluster.drops(self._origin):
            cluster.clock.now_s += self._timeout_s
            raise HttpRequestError(f"{self._origin} does not answer: timed out")
        try:
            self._headers, self._body = cluster.answer(self._origin, self._target)
        except ConnectionRefusedError:
            raise HttpRequestError(f"{self._origin} does not answer: refused") from None
        except Refusal as refusal:
            self._body = json.dumps(refusal.body).encode()
            return refusal.status
        self.step()  # the reply is lost with the process
        self.is_open = True
        return 200

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def read(self, bytes_max: int) -> bytes:
        return self._body

    read_start = read

    def read_into(self, view: memoryview) -> None:
        view[:] = self._body

    def close(self) -> None:
        self.is_open = False
