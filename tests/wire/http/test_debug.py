"""/debug: what can be seen of the running process."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.web import NSQ_HEADER, TEXT_TYPE, ask


def test_the_index_lists_the_pages(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/debug/pprof/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers[NSQ_HEADER] is None
    for page in (b"cmdline", b"goroutine", b"heap", b"profile"):
        assert b"%b</a>" % page in answer.body or b"%b?" % page in answer.body


def test_command_line(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/debug/pprof/cmdline")
    assert answer.headers["Content-Type"] == TEXT_TYPE
    assert f"--data-path={nsqd.data_path}" in answer.body.decode().split("\0")


@pytest.mark.parametrize("rate", ["", "x", "1.5"])
def test_a_bad_block_rate_is_refused(nsqd: Nsqd, rate: str) -> None:
    answer = ask(nsqd, "PUT", f"/debug/setblockrate?rate={rate}")
    text = f'invalid block rate : strconv.Atoi: parsing "{rate}": invalid syntax'
    assert (answer.status, answer.body.decode()) == (400, text)


@pytest.mark.deviation  # the original does it, and answers 500
@pytest.mark.parametrize(
    ("method", "target"), [("PUT", "/debug/setblockrate?rate=0"), ("POST", "/debug/freememory")]
)
def test_actions_succeed(nsqd: Nsqd, method: str, target: str) -> None:
    answer = ask(nsqd, method, target)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.deviation  # Python's own
def test_stacks_of_threads_and_tasks(nsqd: Nsqd) -> None:
    text = ask(nsqd, "GET", "/debug/pprof/goroutine").body.decode()
    assert "thread MainThread:\n" in text
    assert "Stack for <Task" in text


@pytest.mark.deviation
def test_heap(nsqd: Nsqd) -> None:
    text = ask(nsqd, "GET", "/debug/pprof/heap").body.decode()
    assert re.search(r"^heap_in_use_bytes [1-9]\d*$", text, re.MULTILINE)
    assert re.search(r"^ +\d+ builtins\.dict$", text, re.MULTILINE)


@pytest.mark.deviation
@pytest.mark.slow
def test_profile(nsqd: Nsqd) -> None:
    """Of CPU time only, so the daemon has to do something meanwhile; and one at a time."""
    with ThreadPoolExecutor(2) as threads:
        target = "/debug/pprof/profile?seconds=1"
        asked = [threads.submit(ask, nsqd, "GET", target) for _ in range(2)]
        while not all(each.done() for each in asked):
            assert ask(nsqd, "GET", "/ping").status == 200
    refused, taken = sorted((each.result() for each in asked), key=lambda answer: -answer.status)
    assert (refused.status, taken.status) == (500, 200)
    lines = taken.body.decode().splitlines()
    assert all(re.fullmatch(r"[^;]+(;[^;]+)* \d+", line) for line in lines)
    assert any("pumpline.web.server.HttpServer._serve" in line for line in lines)


@pytest.mark.deviation
def test_a_profile_ends_with_the_client_that_asked_for_it(nsqd: Nsqd) -> None:
    request = b"GET /debug/pprof/profile?seconds=300 HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=10) as raw:
        raw.sendall(request)
        raw.shutdown(socket.SHUT_WR)
        with raw.makefile("rb") as answer:
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.deviation
@pytest.mark.parametrize("seconds", ["x", "0", "-1", "301", "1.5"])
def test_a_profile_has_a_length(nsqd: Nsqd, seconds: str) -> None:
    answer = ask(nsqd, "GET", f"/debug/pprof/profile?seconds={seconds}")
    assert (answer.status, answer.code) == (400, "INVALID_SECONDS")


@pytest.mark.deviation
@pytest.mark.parametrize("page", ["symbol", "block", "threadcreate"])
def test_what_only_go_has(nsqd: Nsqd, page: str) -> None:
    assert ask(nsqd, "GET", f"/debug/pprof/{page}").status == 404
