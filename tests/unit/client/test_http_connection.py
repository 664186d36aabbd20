"""The small HTTP client: its bounds, connections that are kept, and requests that are given up."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pumpline.client.http_connection import (
    HttpClientConnection,
    HttpRequestError,
    HttpThread,
)
from tests.kit.asking import ask_once

OK = b"HTTP/1.1 200 OK\r\n"
LIMITS = {"timeout_s": 10.0, "bytes_max": 1000}

Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(serve: Serve) -> Iterator[str]:
    """A server that gives each connection to `serve`, in a thread; and where it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=run, args=(client,), daemon=True).start()

        def run(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                serve(client)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def saying(*answers: bytes) -> Serve:
    """One answer for each request, then the end."""

    def serve(client: socket.socket) -> None:
        for answer in answers:
            read_request(client)
            client.sendall(answer)

    return serve


def read_request(client: socket.socket) -> bytes:
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        piece = client.recv(4096)
        if not piece:
            raise OSError("the client has closed")
        request += piece
    return request


def with_length(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serving(saying(with_length(b"one"), with_length(b"two"))) as url:
        connection = HttpClientConnection(url, timeout_s=10)
        assert connection.ask("GET", "/", bytes_max=10) == (200, b"one")
        assert connection.is_open
        assert connection.ask("GET", "/", bytes_max=10) == (200, b"two")
        with pytest.raises(HttpRequestError):
            connection.ask("GET", "/", bytes_max=10)
        assert not connection.is_open


def test_a_body_is_read_into_memory_of_the_caller() -> None:
    with serving(saying(with_length(b"abcdef"), with_length(b"next"))) as url:
        connection = HttpClientConnection(url, timeout_s=10)
        connection.send("GET", "/")
        assert connection.receive() == 200
        body = bytearray(int(connection.header("Content-Length")))
        connection.read_into(memoryview(body))
        assert body == b"abcdef"
        assert connection.ask("GET", "/", bytes_max=10).body == b"next"
        connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        with_length(b"x" * 1001),
        OK + b"\r\n" + b"x" * 1001,
        OK + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
        OK + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 1001,
        OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * 100_000,
    ],
    ids=["length", "to the end", "chunk", "claimed", "negative chunk"],
)
def test_an_answer_over_the_limit_is_not_kept_in_memory(answer: bytes) -> None:
    with serving(saying(answer)) as url, pytest.raises(HttpRequestError):
        ask_once("GET", url, timeout_s=10, bytes_max=1000)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (OK + b"Content-Length: 100\r\n\r\nshort", "the answer ends early"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\nshort", "the answer ends early"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the answer is not HTTP"),
        (OK + b"a" * 100_000 + b"\r\n\r\n", "a line of the answer is too long"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "the answer ends early"),
    ],
)
def test_a_bad_answer_is_told_in_words(answer: bytes, text: str) -> None:
    with serving(saying(answer)) as url, pytest.raises(HttpRequestError, match=text):
        ask_once("GET", url, timeout_s=10, bytes_max=1000)


def test_the_start_of_a_long_error_is_read_and_the_rest_is_not() -> None:
    with serving(saying(b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\n" + b"x" * 100)) as url:
        connection = HttpClientConnection(url, timeout_s=10)
        connection.send("GET", "/")
        assert connection.receive() == 500
        assert connection.read_start(10) == b"x" * 10
        assert not connection.is_open


def test_a_server_that_refuses_a_body_half_way_is_still_heard() -> None:
    def serve(client: socket.socket) -> None:
        client.recv(100)
        client.sendall(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 20):
            pass

    with serving(serve) as url:
        assert ask_once("POST", url, body=b"x" * (4 << 20), **LIMITS) == (413, b"no")


def test_a_silent_server_is_waited_for_as_long_as_was_said() -> None:
    with serving(silent) as url, pytest.raises(HttpRequestError, match="no answer within"):
        ask_once("GET", url, timeout_s=0.05, bytes_max=1000)


def silent(client: socket.socket) -> None:
    while client.recv(4096):
        pass


async def test_the_event_loop_gets_the_answer() -> None:
    with serving(saying(with_length(b"yes"))) as url:
        assert await HttpThread(f"{url}/a?b=c").get(headers={}, **LIMITS) == (200, b"yes")


async def test_nobody_listening_is_an_error(unused_tcp_port: int) -> None:
    with pytest.raises(HttpRequestError):
        await HttpThread(f"http://127.0.0.1:{unused_tcp_port}/").get(headers={}, **LIMITS)


def dripping(client: socket.socket) -> None:
    """Never silent for long, and never at an end."""
    read_request(client)
    client.sendall(OK)
    pause = threading.Event()
    while not pause.wait(0.005):
        client.sendall(b"a")


@pytest.mark.parametrize("serve", [silent, dripping])
async def test_an_answer_has_a_time_limit_as_a_whole(serve: Serve) -> None:
    with serving(serve) as url, pytest.raises(HttpRequestError, match=r"no answer within 0\.2 s"):
        await HttpThread(url).get(headers={}, timeout_s=0.2, bytes_max=1000)


async def test_a_request_that_is_given_up_is_aborted_and_its_thread_ends() -> None:
    asked, ended = threading.Event(), threading.Event()

    def serve(client: socket.socket) -> None:
        read_request(client)
        asked.set()
        silent(client)
        ended.set()

    with serving(serve) as url:
        http = HttpThread(url)
        task = asyncio.create_task(http.get(headers={}, timeout_s=60, bytes_max=1000))
        assert await asyncio.to_thread(asked.wait, 10)
        with pytest.raises(HttpRequestError, match="has not answered the last request"):
            await http.get(headers={}, timeout_s=60, bytes_max=1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 10)


HANGING = """
import asyncio, socket, threading
from pumpline.client import Consumer, Settings

asked = threading.Event()

def hang(*_, **__):  # a name server that does not answer: nothing can interrupt that
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = hang

async def main():
    consumer = Consumer(
        "orders", "billing", lookupd="lookup:4161", settings=Settings(poll_timeout_s=600)
    )
    async with consumer:
        await asyncio.to_thread(asked.wait, 30)
    print(asked.is_set(), "closed", flush=True)

asyncio.run(main())
"""


def test_an_nsqlookupd_that_hangs_holds_up_neither_the_consumer_nor_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True closed\n"), done.stderr
