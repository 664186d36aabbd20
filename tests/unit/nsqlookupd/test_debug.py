"""GET /debug of a registry with many names."""

import asyncio
import json

from pumpline.nsqlookupd.http import SORTED_AT_ONCE, DebugEndpoints
from pumpline.nsqlookupd.registry import NodeIdentity, Registry
from pumpline.web.request import Request

COUNT = 2 * SORTED_AT_ONCE
IDENTITY = NodeIdentity(
    hostname="h",
    broadcast_address="b",
    tcp_port=1,
    http_port=2,
    version="1",
    topology_zone="",
    topology_region="",
)


async def test_nothing_is_an_empty_object() -> None:
    reply = await DebugEndpoints(Registry(inactive_ns=1, tombstone_ns=1)).registrations(Request())
    assert reply.body == b"{}"


async def test_all_names_are_there_sorted_and_others_get_their_turn() -> None:
    registry = Registry(inactive_ns=1, tombstone_ns=1)
    node = registry.add_node("a:1", IDENTITY, 0)
    for number in range(COUNT):
        registry.register(node, "t", f"c{number}")
    answer = asyncio.ensure_future(DebugEndpoints(registry).registrations(Request()))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0)
        turns += 1
    keys = list(json.loads((await answer).body))
    names = [f"channel:t:c{number}" for number in range(COUNT)]
    assert keys == sorted([*names, "client::", "topic:t:"])
    assert turns >= 3  # one topic was one turn, and the JSON another
