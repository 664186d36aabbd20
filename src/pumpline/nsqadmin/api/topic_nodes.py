"""Which nodes a request is about, and what each of them said, as the page is told.

Only nodes of the cluster are ever asked: an address from a request is looked up, not used.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from pumpline.cluster.client import Outcome
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.nsqadmin.api.nsq import upstream_error
from pumpline.nsqadmin.cluster.changes import STOCK_NSQD
from pumpline.nsqadmin.cluster.directory import ClusterDirectory, Failed, warning_message
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.web.replies import HttpError, Reply, json_reply

T = TypeVar("T")


class TopicNodes:
    def __init__(self, directory: ClusterDirectory, state: ClusterState) -> None:
        self.upstream = directory.upstream
        self._directory = directory
        self._state = state

    def known(self, node: str) -> str:
        """404 if there is no such node."""
        if node not in self._state.nodes:
            raise HttpError(404, "NODE_NOT_FOUND")
        return node

    def all(self) -> list[str]:
        return list(self._state.nodes)

    async def having(self, topic: str, node: str = "") -> list[str]:
        """The nodes that have a topic; or this one."""
        if node:
            return [self.known(node)]
        row = self._state.topics.get(topic)
        if row is not None:
            return list(row.on)
        try:
            found = await self._directory.topic_nodes(topic)
        except Failed as error:
            raise upstream_error(f"find topic {topic}", error) from None
        return [each.address for each in found.nodes]

    async def ask(
        self, nodes: Iterable[str], ask: Callable[[str], Awaitable[T]]
    ) -> Outcome[str, T]:
        return await self.upstream.each(nodes, ask)

    async def ask_in_threads(
        self, nodes: Iterable[str], work: Callable[[ClusterNode], T]
    ) -> Outcome[str, T]:
        """Work of many requests to each node."""
        return await self.upstream.each(
            nodes, lambda address: self.upstream.run(address, work, is_long=True)
        )


def in_words(error: NodeFailure) -> str:
    return STOCK_NSQD if error.is_unknown_path else str(error)


def failures(errors: Mapping[str, NodeFailure]) -> list[dict[str, Any]]:
    return [{"node": node, "ok": False, "error": in_words(error)} for node, error in errors.items()]


def warning_of(errors: Mapping[str, NodeFailure]) -> str:
    texts = [f"{node}: {in_words(error)}" for node, error in errors.items()]
    return warning_message(["\n".join(texts)] if texts else [])


def change_reply(shown: dict[str, Any], errors: Mapping[str, NodeFailure], *, ok: int) -> Reply:
    """Of a change: 502 if it worked nowhere, though it was tried."""
    failed = len(errors)
    message = warning_of(errors)
    if failed and not ok:
        message = "UPSTREAM_ERROR: " + message.removeprefix("WARNING: ")
    told = {**shown, "ok": ok, "failed": failed, "message": message}
    return json_reply(told, status=502 if failed and not ok else 200)
