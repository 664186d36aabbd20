"""nsq_to_http: requests as recorded from NSQ 1.3.0's tool, its faults mended, and our flags."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool, last_line, ours, run_tool


class Asked(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int = 200
    retry_after: str = ""


class WebServer:
    """Keeps what it was asked; answers by a function of the requests so far."""

    def __init__(self, answer: Callable[[Asked, int], Answer]) -> None:
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.requestline, dict(self.headers), body)
                outer.asked.append(asked)
                said = answer(asked, len(outer.asked))
                self.send_response(said.status)
                if said.retry_after:
                    self.send_header("Retry-After", said.retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(
    answer: Callable[[Asked, int], Answer] = lambda asked, count: Answer(),
) -> Iterator[WebServer]:
    server = WebServer(answer)
    try:
        yield server
    finally:
        server.close()


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=nsq_to_http")
    with nsqd.connect() as client:
        client.mpub(topic, bodies)


def is_finished(nsqd: Nsqd, topic: str) -> bool:
    channel = nsqd.channel_stats(topic, "nsq_to_http")
    keys = ("depth", "in_flight_count", "deferred_count")
    return bool(channel) and not any(channel[key] for key in keys)


@contextmanager
def running(nsqd: Nsqd, topic: str, directory: Path, *flags: str) -> Iterator[RunningTool]:
    with RunningTool(
        "nsq_to_http",
        f"--topic={topic}",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        *flags,
        directory=directory,
    ) as tool:
        yield tool
        assert tool.stop() == 0, tool.stderr


AT_ONCE = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")


def test_a_post_is_that_of_nsqs_tool(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, "a b&c/é+%".encode())
    with serving() as server:
        flags = (f"--post={server.url}/x", "--header=X-A:1", "--header=Authorization: Bearer z")
        with running(nsqd, topic, tmp_path, *flags):
            wait_until(lambda: is_finished(nsqd, topic))
    assert server.asked == [
        Asked(
            "POST /x HTTP/1.1",
            {
                "Host": server.url.removeprefix("http://"),
                "User-Agent": "nsq_to_http v1.3.0",
                "Content-Length": "10",
                "Authorization": "Bearer z",
                "Content-Type": "application/octet-stream",
                "X-A": "1",
                "Accept-Encoding": "gzip",
            },
            b"a b&c/\xc3\xa9+%",
        )
    ]


def test_a_get_is_that_of_nsqs_tool(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, "a b&c/é+%".encode())
    with serving() as server, running(nsqd, topic, tmp_path, f"--get={server.url}/x?q=%s&r=1"):
        wait_until(lambda: is_finished(nsqd, topic))
    (asked,) = server.asked
    assert asked.line == "GET /x?q=a+b%26c%2F%C3%A9%2B%25&r=1 HTTP/1.1"
    assert asked.headers.keys() == {"Host", "User-Agent", "Accept-Encoding"}


@pytest.mark.parametrize(
    ("kind", "status", "tries"),
    [("--post={}/x", 201, 1), ("--get={}/%s", 201, 3), ("--post={}/x", 404, 3)],
)
def test_what_is_no_success_is_tried_again(
    nsqd: Nsqd, topic: str, tmp_path: Path, kind: str, status: int, tries: int
) -> None:
    publish(nsqd, topic, b"one")
    with (
        serving(lambda asked, count: Answer(status if count < 3 else 200)) as server,
        running(nsqd, topic, tmp_path, kind.format(server.url), *AT_ONCE),
    ):
        wait_until(lambda: is_finished(nsqd, topic))
        assert len(server.asked) == tries


def test_a_message_that_fails_too_often_is_dropped_as_by_nsqs_tool(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, b"one")
    opts = (*AT_ONCE, "--consumer-opt=max_attempts,2")
    with (
        serving(lambda asked, count: Answer(500)) as server,
        running(nsqd, topic, tmp_path, f"--post={server.url}", *opts),
    ):
        wait_until(lambda: is_finished(nsqd, topic))
        assert len(server.asked) == 2
    names = {each["topic_name"] for each in nsqd.stats()["topics"]}
    assert f"{topic}.dlq" not in names


@pytest.mark.deviation
def test_only_the_statuses_named_are_tried_again(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, b"400", b"503")

    refused: set[bytes] = set()

    def answer(asked: Asked, count: int) -> Answer:
        """Each is refused once, in whatever order they come."""
        if asked.body in refused:
            return Answer(200)
        refused.add(asked.body)
        return Answer(int(asked.body))

    with serving(answer) as server:
        flags = (f"--post={server.url}", "--retry-status=429,500-599", *AT_ONCE)
        with running(nsqd, topic, tmp_path, *flags) as tool:
            wait_until(lambda: is_finished(nsqd, topic))
            assert sorted(asked.body for asked in server.asked) == [b"400", b"503", b"503"]
            assert "got status code 400; dropped" in tool.stderr


@pytest.mark.deviation
def test_retry_after_is_heeded(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, b"one")
    with serving(lambda asked, count: Answer(429 if count == 1 else 200, "3600")) as server:
        flags = (f"--post={server.url}", "--retry-after", *AT_ONCE)
        with running(nsqd, topic, tmp_path, *flags):
            wait_until(lambda: nsqd.channel_stats(topic, "nsq_to_http")["deferred_count"])
            assert len(server.asked) == 1


@pytest.mark.deviation
def test_several_topics_and_several_urls(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    other = f"{topic}_other"
    publish(nsqd, topic, *(b"%d" % number for number in range(50)))
    publish(nsqd, other, b"other")
    with serving() as first, serving() as second:
        flags = (f"--topic={other}", f"--post={first.url}", f"--post={second.url}")
        with running(nsqd, topic, tmp_path, *flags, "--mode=round-robin"):
            wait_until(lambda: is_finished(nsqd, topic) and is_finished(nsqd, other))
        assert len(first.asked) + len(second.asked) == 51
        assert abs(len(first.asked) - len(second.asked)) <= 1


def test_none_of_the_messages_is_a_sample_of_zero(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, b"one", b"two")
    with serving() as server:
        with running(nsqd, topic, tmp_path, f"--post={server.url}", "--sample=0"):
            wait_until(lambda: is_finished(nsqd, topic))
        assert server.asked == []


@pytest.mark.deviation
def test_messages_are_touched_while_a_request_takes_long(topic: str, tmp_path: Path) -> None:
    release = threading.Event()

    def slow(asked: Asked, count: int) -> Answer:
        release.wait(60)
        return Answer()

    with Nsqd(tmp_path / "data", ["--msg-timeout=200ms"]) as nsqd, serving(slow) as server:
        publish(nsqd, topic, b"one")
        with running(nsqd, topic, tmp_path, f"--post={server.url}"):
            wait_until(lambda: server.asked)
            time.sleep(0.6)  # three times the timeout has to pass
            assert nsqd.channel_stats(topic, "nsq_to_http")["timeout_count"] == 0
            release.set()
            wait_until(lambda: is_finished(nsqd, topic))
        assert len(server.asked) == 1


@pytest.mark.deviation
def test_status_lines_are_those_of_nsqs_tool(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(100)))
    with serving() as server:
        flags = (f"--post={server.url}", "--status-every=100")
        with running(nsqd, topic, tmp_path, *flags) as tool:
            tool.wait_for("[aggregate]: finished")
    line = r"\[aggregate\]: finished 100 - 99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms"
    assert re.search(rf"^[\d/]+ [\d:]+ {line}$", tool.stderr, re.MULTILINE), tool.stderr


NSQD = "--topic=t --nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--topic and --channel are required"),
        ("--topic=t", "--nsqd-tcp-address or --lookupd-http-address required"),
        (NSQD, "--get or --post required"),
        (f"{NSQD} --post=a --get=b", "use --get or --post not both"),
        (f"{NSQD} --get=http://x/", "invalid GET address - must be a printf string"),
        (f"{NSQD} --get=http://x/%s%s", "invalid GET address - must be a printf string"),
        (f"{NSQD} --get=http://x/%s --content-type=x", "--content-type only used with --post"),
        (f"{NSQD} --post=a --content-type=", "--content-type requires a value when used"),
        (f"{NSQD} --post=a --sample=2", "ERROR: --sample must be between 0.0 and 1.0"),
        (f"{NSQD} --post=a --header=foo", "--header value format should be 'key=value'"),
        (f"{NSQD} --post=a --header=foo:", "--header value format should be 'key=value'"),
        (f"{NSQD} --post=a --n=0", "no handlers"),
        (f"{NSQD} --post=a", "dial tcp 127.0.0.1:1: connect: connection refused"),
        ours(
            f"{NSQD} --post=a --mode=foo",  # NSQ's tool sends to all then
            "--mode should be one of round-robin, hostpool, epsilon-greedy",
        ),
        ours(f"{NSQD} --post=a --retry-status=x", "--retry-status should be like 429,500-599"),
    ],
)
def test_flags_that_cannot_work_are_told(flags: str, said: str) -> None:
    done = run_tool("nsq_to_http", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)
