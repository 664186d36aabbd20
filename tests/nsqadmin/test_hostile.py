"""Nothing that is asked, and nothing that a node answers, makes nsqadmin fail."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.nsqadmin.process import nsqd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import Asked, FakeDaemon
from tests.nsqadmin.conftest import Fleet
from tests.nsqadmin.test_failures import healthy

NSQDS = 1
SEED = int(os.environ.get("FUZZ_SEED", "1"))
REQUESTS = 500
READS = """/api/v1/overview /api/v1/table/topics /api/v1/table/channels /api/v1/table/nodes
    /api/v1/table/consumers /api/v1/topic /api/v1/channel /api/v1/node /api/v1/lookupds
    /api/v1/history /api/v1/messages /api/v1/message /api/v1/body /api/v1/dead-letters
    /api/v1/holds /api/v1/settings /api/v1/session /api/topics /api/topics/orders
    /api/topics/orders/ch /api/topics/%ff /api/topics/a%2fb /api/nodes /api/nodes/%00 /api/counter
    /api/graphite /config/log_level /config/%00 /static/%00 /topics/%ff/%00""".split()
WRITES = """/api/v1/actions /api/v1/rewind /api/v1/dead-letters /api/v1/settings /api/topics
    /api/topics/orders /api/topics/orders/ch /api/topics/%ff""".split()
PARAMETERS = """topic channel node search sort filter offset limit from time_ms newest contains id
    body_max next state fresh metric target inactive""".split()
WORDS = """orders ch x %00 %ff -1 0 1 99999999999999999999 1e9 true %F0%9F%98%80 127.0.0.1:1 ..%2f
    orders.dlq orders%23ephemeral -waiting spark __class__ trouble 2@127.0.0.1:1 [1] {}""".split()
FIELDS = """topic channel node action targets time_ms offset to dry_run settings letters all
    contains""".split()
VALUES: list[Any] = [
    *("orders", "ch", "", "pause", "create", "tombstone", "end", "x" * 100, "\ud800", "\u2028"),
    *(None, 1, -1, 1.5, 1e308, 10**30, True, [], {}, [{}]),
    *([{"topic": "orders"}], [{"topic": "orders", "hold": "h"}], {"max_attempts": 3}, {"x": None}),
]


def test_no_request_is_a_panic(fleet: Fleet) -> None:
    fleet.create("orders", "ch")
    chosen = random.Random(SEED)
    node = fleet.nsqd.http_address
    for _ in range(REQUESTS):
        body: object = None
        if chosen.random() < 0.6:
            words = [*WORDS, node]
            pairs = [
                f"{chosen.choice(PARAMETERS)}={chosen.choice(words)}"
                for _ in range(chosen.randrange(5))
            ]
            known = ["topic=orders"] if chosen.random() < 0.7 else []
            path = f"{chosen.choice(READS)}?{'&'.join([*known, *pairs])}"
        else:
            path = chosen.choice(WRITES)
            values = [*VALUES, node, [{"node": node, "letter_offset": chosen.randrange(-1, 3)}]]
            fields = {
                chosen.choice(FIELDS): chosen.choice(values) for _ in range(chosen.randrange(6))
            }
            body = {"topic": "orders", "channel": "ch", **fields}
        answer = fleet.admin.ask(path, body)
        assert answer.status != 500, (SEED, path, body, answer)
    assert "panic" not in fleet.admin.log_text()


ROWS = [
    ("GET", path)
    for path in (
        "/api/v1/topic?topic=orders",
        "/api/v1/channel?topic=orders&channel=billing",
        "/api/v1/node?node=<node>",
        "/api/v1/table/consumers?topic=orders&channel=billing",
        "/api/v1/messages?topic=orders",
        "/api/v1/message?topic=orders&node=<node>&offset=0",
        "/api/v1/body?topic=orders&node=<node>&offset=0",
        "/api/v1/dead-letters?topic=orders",
        "/api/v1/holds?topic=orders",
        "/api/v1/settings?topic=orders",
        "/api/topics/orders",
        "/api/topics/orders/billing",
        "/api/nodes",
    )
] + [
    ("POST", path)
    for path in ("/api/v1/rewind", "/api/v1/settings", "/api/v1/dead-letters", "/api/v1/actions")
]
CHANGE = {
    "topic": "orders",
    "channel": "billing",
    "to": "end",
    "settings": {"max_depth": 1},
    "all": True,
    "action": "pause",
    "targets": [{"topic": "orders"}],
}
MESSAGE = {"offset": 0, "id": "x", "timestamp": 1, "body_base64": "no base64!"}
JUNK = [
    "",
    "null",
    "[]",
    "7",
    '"x"',
    '{"a":',
    "\udcff",
    "[" * 5000,
    json.dumps({"messages": [{}], "holds": [{}], "settings": 7, "topics": {}, "producers": [1]}),
    json.dumps(
        {
            "first": 0,
            "end": 1,
            "next": 1,
            "messages": [MESSAGE],
            "settings": {"retention_time": "soon"},
            "producers": [{"pub_counts": [3]}, 4],
            "holds": [{"hold": "h", "offset": -1}],
        }
    ),
]


@pytest.mark.parametrize("junk", JUNK)
def test_no_answer_of_a_node_is_a_panic(tmp_path: Path, junk: str) -> None:
    """The poller sees a healthy node; whatever else is asked is answered with junk."""
    odd = [False]

    def answer(asked: Asked) -> tuple[int, str]:
        polls = asked.path == "/stats" and "topic" not in asked.query
        return (200, junk) if odd[0] and not polls else healthy(asked)

    with (
        FakeDaemon(answer) as nsqd,
        running_nsqadmin(tmp_path / "log", *nsqd_flags([nsqd.address])) as admin,
    ):
        admin.knows_topic("orders")
        odd[0] = True
        for method, path in ROWS:
            body = CHANGE if method == "POST" else None
            told = admin.ask(path.replace("<node>", nsqd.address), body)
            assert told.status != 500, (path, told)
        assert "panic" not in admin.log_text()
        assert "Traceback" not in admin.log_text()
