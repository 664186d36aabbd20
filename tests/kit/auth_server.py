"""An auth server for tests: records what it is asked and answers as it is told.

Speaks HTTP, or HTTPS with an identity. Knows the form of a grant and nothing of nsqd.
"""

import json
import ssl
import threading
from collections.abc import Callable
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from tests.kit.certificates import Identity

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}


class Asked(NamedTuple):
    method: str
    target: str
    headers: HTTPMessage
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes


Answering = Callable[[Asked], Answer]


def grant(*rows: object, ttl_s: object = 3600, **fields: object) -> Answer:
    """An answer that grants these rows, or everything if there is none."""
    authorizations = rows or (EVERYTHING,)
    given = {"ttl": ttl_s, "identity": "", "identity_url": "", "authorizations": authorizations}
    return Answer(200, json.dumps({**given, **fields}).encode())


REFUSED = Answer(403, b"{}")


class _Handler(BaseHTTPRequestHandler):
    server: "AuthorityServer"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, self.path, self.headers, body)
        self.server.asked.append(asked)
        answer = self.server.answering(asked)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


class AuthorityServer(ThreadingHTTPServer):
    """A context manager that serves until it is left."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answering: Answering, identity: Identity | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answering = answering
        self.asked: list[Asked] = []
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
