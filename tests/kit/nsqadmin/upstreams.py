"""Stand-ins for nsqds and nsqlookupds: with recorded answers, with odd ones, or with none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

RECORDING = Path(__file__).with_name("recording.json")

NOT_FOUND = (404, '{"message":"NOT_FOUND"}')


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked], tuple[int, str]]


class FakeDaemon:
    """An HTTP server on a port of its own. What it was asked is in `asked`. An answer that raises
    ConnectionError is none."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.is_closed = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if fake.is_closed:  # a connection that was kept
                    self.close_connection = True
                    return
                url = urlsplit(self.path)
                query = {name: each[0] for name, each in parse_qs(url.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, url.path, query, headers, body)
                fake.asked.append(asked)
                try:
                    status, text = fake.answer(asked)
                except ConnectionError:
                    self.close_connection = True
                    return
                told = text.encode("utf-8", "surrogateescape")
                self.send_response(status)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()

    def bodies(self) -> list[Any]:
        """JSON of all that was posted."""
        return [json.loads(asked.body) for asked in self.asked if asked.method == "POST"]


class SilentPort:
    """Takes connections, and never says anything."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def a_node(port: int, *topics: str, **more: Any) -> dict[str, Any]:
    """An nsqd, as an nsqlookupd tells of it."""
    return {
        "remote_address": "127.0.0.1:1",
        "hostname": "host",
        "broadcast_address": "127.0.0.1",
        "tcp_port": port + 1 if port < 65535 else 1,
        "http_port": port,
        "version": "1.3.0",
        "topics": list(topics),
        "tombstones": [False] * len(topics),
        **more,
    }


def lookupd_of(*nodes: dict[str, Any]) -> Answer:
    """An nsqlookupd that knows these nodes."""

    def answer(asked: Asked) -> tuple[int, str]:
        topic = asked.query.get("topic", "")
        if asked.path == "/nodes":
            return 200, json.dumps({"producers": nodes})
        if asked.path == "/topics":
            return 200, json.dumps({"topics": sorted({t for n in nodes for t in n["topics"]})})
        if asked.path == "/lookup":
            own = [node for node in nodes if topic in node["topics"]]
            return 200, json.dumps({"channels": [], "producers": own})
        if asked.path == "/info":
            return 200, '{"version":"1.3.0"}'
        return 200, "{}" if asked.method == "GET" else ""

    return answer


class RecordedCluster:
    """Two nsqds and an nsqlookupd of NSQ 1.3.0, as recorded, and what its nsqadmin said of them."""

    def __init__(self) -> None:
        self._text = RECORDING.read_text()
        self._recorded: dict[str, Any] = {}
        self.nsqds = {
            name: FakeDaemon(lambda asked, name=name: self._nsqd(name, asked)) for name in "AB"
        }
        self.lookupd = FakeDaemon(self._lookupd)
        text = self._text.replace("<L>", self.lookupd.address)
        for name, fake in self.nsqds.items():
            text = text.replace(f"<{name}>", fake.address)
            text = text.replace(f"<{name}_http>", str(fake.port))
            text = text.replace(f"<{name}_tcp>", str(fake.port % 65535 + 1))
        self._recorded = json.loads(text)

    def said(self, mode: str) -> dict[str, tuple[int, str]]:
        """What NSQ's nsqadmin answered: with nsqlookupds (`admin`), or without (`direct`)."""
        return {path: (status, body) for path, (status, body) in self._recorded[mode].items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fake in (*self.nsqds.values(), self.lookupd):
            fake.__exit__()

    def _nsqd(self, name: str, asked: Asked) -> tuple[int, str]:
        query = asked.query
        key = asked.path
        if asked.path == "/stats":
            topic = query.get("topic", "")
            known = topic if topic in ("", "orders", "alone") else "nope"
            key = f"/stats {known} {query.get('channel', '')} {query['include_clients']}"
        status, body = self._recorded["nsqd"][name].get(key, NOT_FOUND)
        return status, body

    def _lookupd(self, asked: Asked) -> tuple[int, str]:
        topic = asked.query.get("topic")
        key = asked.path if topic is None else f"{asked.path} {topic}"
        status, body = self._recorded["lookupd"].get(key, NOT_FOUND)
        return status, body
