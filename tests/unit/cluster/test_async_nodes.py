"""Nodes asked from an event loop: in threads, each with a limit and an end."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from pumpline.cluster import async_nodes
from pumpline.cluster.access import NodeAccess
from pumpline.cluster.async_nodes import AsyncNodes
from pumpline.cluster.node import NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.testing import LocalNsqd


@pytest.fixture
def nsqd() -> Iterator[LocalNsqd]:
    with LocalNsqd() as running:
        yield running


def new_nodes(timeout_s: float = 30.0) -> AsyncNodes:
    return AsyncNodes(NodeAccess(timeout_s=timeout_s), timeout_s=timeout_s)


def http_threads() -> int:
    return sum(thread.name == "pumpline-http" for thread in threading.enumerate())


async def ended_threads() -> None:
    async with asyncio.timeout(30):
        while http_threads():
            await asyncio.sleep(0.01)


async def test_many_requests_share_few_connections(nsqd: LocalNsqd) -> None:
    nsqd.publish("orders", b"one")
    nodes, address = new_nodes(), nsqd.http_address
    found = await nodes.each(range(200), lambda _: nodes.run(address, read_stats))
    assert not found.errors
    assert {each.topics[0].message_count for each in found.answers.values() if each.topics} == {1}
    await nodes.close()
    await ended_threads()


async def test_a_node_that_is_silent_costs_one_timeout_and_leaves_no_thread() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        nodes = new_nodes(timeout_s=0.05)
        with pytest.raises(NodeFailure, match="no answer within") as failed:
            await nodes.get(address, "/ping")
        assert failed.value.in_nsq_words().startswith(f"{address}: no answer")
        await ended_threads()
        await nodes.close()


async def test_a_request_that_nobody_waits_for_is_aborted() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        nodes = new_nodes()
        asking = asyncio.ensure_future(nodes.get(f"127.0.0.1:{silent.getsockname()[1]}", "/ping"))
        connection, _ = await asyncio.to_thread(silent.accept)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await ended_threads()
        connection.close()


async def test_a_tail_is_read_in_pieces_and_ends_with_its_reader(
    nsqd: LocalNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while more waits than may wait: its thread ends."""
    monkeypatch.setattr(async_nodes, "PIECES_MAX", 1)
    nsqd.publish("orders", *(b"%d" % each for each in range(50)))
    nodes = new_nodes()
    async with nodes.tail(nsqd.http_address, "/log/tail", {"topic": "orders", "from": 0}) as tail:
        read = b""
        async for piece in tail:
            read += piece
            if b'"49"' in read:
                break
        nsqd.publish("orders", *(b"%d" % each for each in range(50)))
    await ended_threads()


async def test_a_tail_of_no_topic_is_refused(nsqd: LocalNsqd) -> None:
    nodes = new_nodes()
    with pytest.raises(NodeFailure, match="404 TOPIC_NOT_FOUND"):
        async with nodes.tail(nsqd.http_address, "/log/tail", {"topic": "nope"}):
            pass
    await ended_threads()
