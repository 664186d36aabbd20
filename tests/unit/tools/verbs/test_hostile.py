"""Verbs against servers that answer what no nsqd answers: told by node, never a traceback."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.kit.tools.verbs import Pumpline

ORDERS = b'{"topics":[{"topic_name":"orders","channels":[{"channel_name":"billing"}]}]}'
HOLD = b'{"topics":[{"topic_name":"orders","channels":[{"channel_name":"h","hold":true}]}]}'
BODIES = [
    b"",
    b"OK",
    b"null",
    b"1",
    b"[]",
    b"{}",
    b"\xff\x00",
    b'{"topics":{}}',
    b'{"topics":[{"topic_name":7}]}',
    b'{"topics":[{"topic_name":"orders","channels":null}]}',
    b'{"producers":[{}],"holds":[7],"settings":[],"messages":{}}',
    ORDERS,
    HOLD,
]
COMMANDS = [
    "topics",
    "channels",
    "channels orders",
    "holds",
    "deadletters",
    "deadletters show orders",
    "deadletters publish orders --all --yes",
    "settings orders",
    "seek orders billing --to end --yes",
    "pause orders",
    "delete orders billing --yes",
    "doctor",
    "top --once --interval 100ms",
]


class Liar(ThreadingHTTPServer):
    daemon_threads = True
    body = b""
    status = 200


class _Handler(BaseHTTPRequestHandler):
    server: Liar

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("kind", ["nsqd", "lookupd"])
def test_no_answer_makes_a_verb_fall_over(
    liar: Liar, pumpline: Pumpline, kind: str, status: int
) -> None:
    liar.status = status
    flag = f"--{kind}=127.0.0.1:{liar.server_port}"
    for liar.body in BODIES:
        for command in COMMANDS:
            said = pumpline(*command.split(), flag)
            assert said.code in (0, 1, 2), (command, liar.body)
            assert status == 200 or said.code, (command, liar.body)


def test_an_answer_does_not_steer_the_terminal(liar: Liar, pumpline: Pumpline) -> None:
    liar.status, liar.body = 500, b"\x1b[2Joops\n"
    said = pumpline("topics", f"--nsqd=127.0.0.1:{liar.server_port}")
    assert said.err == f"nsqd 127.0.0.1:{liar.server_port}: 500 \\x1b[2Joops\n"
