"""Which topics of a pattern are written, by what nsqlookupds answer poll after poll."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pumpline.tools.nsq_to_file.options import ToFileOptions
from pumpline.tools.nsq_to_file.topics import TopicPattern


class TopicsServer:
    """Answers /topics and /nodes as it is told; with 500 if it is not."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = outer.answers.get(self.path)
                self.send_response(500 if answer is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def knows(self, topics: str, **nodes: str) -> None:
        producers = [
            {"broadcast_address": node, "tcp_port": 4150, "topics": has.split()}
            for node, has in nodes.items()
        ]
        self.answers = {"/topics": {"topics": topics.split()}, "/nodes": {"producers": producers}}


@pytest.fixture
def lookupds() -> Iterator[list[TopicsServer]]:
    found = [TopicsServer(), TopicsServer()]
    yield found
    for each in found:
        each.server.shutdown()
        each.server.server_close()


def new_pattern(*lookupds: TopicsServer) -> TopicPattern:
    addresses = [f"--lookupd-http-address={each.address}" for each in lookupds]
    return TopicPattern(ToFileOptions.parse(["--topic-pattern=^o", *addresses]))


async def test_a_topic_is_absent_when_its_nsqds_are_there_without_it(
    lookupds: list[TopicsServer],
) -> None:
    lookupd = lookupds[0]
    pattern = new_pattern(lookupd)
    lookupd.knows("oa ob x", one="oa x", two="oa ob")
    assert await pattern.found([]) == {"oa", "ob"}
    lookupd.knows("oa ob x", one="x", two="ob")
    assert await pattern.found(["oa", "ob"]) == {"oa", "ob"}
    assert await pattern.found(["oa", "ob"]) == {"ob"}
    assert await pattern.found(["ob"]) == {"ob"}
    lookupd.knows("oa ob x", one="oa", two="ob")
    assert await pattern.found(["ob"]) == {"oa", "ob"}


async def test_a_topic_whose_nsqd_is_away_is_kept_until_no_nsqlookupd_knows_it(
    lookupds: list[TopicsServer],
) -> None:
    lookupd = lookupds[0]
    pattern = new_pattern(lookupd)
    lookupd.knows("oa ob", one="oa", two="ob")
    await pattern.found([])
    lookupd.knows("oa ob", two="ob")
    for _ in range(4):
        assert await pattern.found(["oa", "ob"]) == {"oa", "ob"}
    lookupd.knows("ob", two="ob")
    assert await pattern.found(["oa", "ob"]) == {"oa", "ob"}
    assert await pattern.found(["oa", "ob"]) == {"ob"}


async def test_nothing_is_absent_while_an_nsqlookupd_does_not_answer(
    lookupds: list[TopicsServer],
) -> None:
    pattern = new_pattern(*lookupds)
    lookupds[0].knows("oa", one="oa")
    lookupds[1].knows("ob", two="ob")
    assert await pattern.found([]) == {"oa", "ob"}
    lookupds[0].knows("oa oc", one="oc")
    lookupds[1].answers = {}
    for _ in range(4):
        assert await pattern.found(["oa", "ob"]) == {"oa", "ob", "oc"}


@pytest.mark.parametrize(
    ("topics", "nodes"),
    [
        ([], {"producers": []}),
        ({"topics": 7}, {"producers": []}),
        ({"topics": ["oa"]}, {"producers": 7}),
        ({"topics": ["oa"]}, {"producers": [{"topics": 7}]}),
    ],
)
async def test_an_answer_that_is_none_counts_as_no_answer(
    lookupds: list[TopicsServer], topics: Any, nodes: Any
) -> None:
    lookupds[0].answers = {"/topics": topics, "/nodes": nodes}
    pattern = new_pattern(lookupds[0])
    for _ in range(3):
        assert await pattern.found(["oa"]) == {"oa"}
