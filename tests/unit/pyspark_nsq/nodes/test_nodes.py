"""`nodes/nodes.py`: who is asked, and what is told to whom."""

import json

from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.options import parse_read
from tests.kit.nsqadmin.upstreams import NOT_FOUND, FakeDaemon, a_node, lookupd_of


def test_an_access_token_is_not_for_nsqlookupds() -> None:
    empty = json.dumps({"node": "n", "topics": []})
    with (
        FakeDaemon(lambda asked: (200, empty)) as nsqd,
        FakeDaemon(lambda asked: NOT_FOUND) as lookupd,
    ):
        lookupd.answer = lookupd_of(a_node(nsqd.port, "orders"))
        options = {"lookupd": lookupd.address, "subscribePattern": ".*", "accessToken": "s" * 16}
        nodes = Nodes(parse_read(options, streaming=False))
        assert nodes.survey().names == {"n": f"http://{nsqd.address}"}
        nodes.close()
    assert nsqd.asked[0].headers["authorization"] == f"Bearer {'s' * 16}"
    assert [(asked.path, "authorization" in asked.headers) for asked in lookupd.asked] == [
        ("/nodes", False)
    ]
