"""Changes of a cluster: create, delete, pause, unpause, empty, tombstone, on nodes and nsqlookupds;
and of one consumer, which is sent away.

Each change is done side by side on all it concerns, and what every one of them said is kept, so
that a person can be told. Knows who must be asked for what; must not know who wants it.
"""

from collections.abc import Iterable

import msgspec

from pumpline.cluster.client import Outcome
from pumpline.cluster.node import NodeFailure
from pumpline.nsqadmin.cluster.directory import ClusterDirectory, Failed

STOCK_NSQD = "a Go nsqd cannot do this"


class ChangeResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a change at one daemon."""

    node: str = ""
    lookupd: str = ""
    ok: bool
    error: str  # in words, for people
    text: str = ""  # in NSQ's words
    in_flight: int | None = None  # messages that a consumer had, which was sent away

    def shown(self) -> dict[str, object]:
        who = {"lookupd": self.lookupd} if self.lookupd else {"node": self.node}
        had = {} if self.in_flight is None else {"in_flight": self.in_flight}
        return {**who, "ok": self.ok, "error": self.error, **had}


class DisconnectAnswer(msgspec.Struct):
    in_flight: int = 0


class Change(msgspec.Struct):
    """What became of a change, everywhere."""

    told: list[ChangeResult] = []
    warnings: list[str] = []  # from looking for whom to tell
    failed: bool = False  # nobody was found

    @property
    def all_failed(self) -> bool:
        return self.failed or (bool(self.told) and not any(each.ok for each in self.told))

    def all_warnings(self) -> list[str]:
        texts = [each.text for each in self.told if not each.ok]
        return [*self.warnings, *(["\n".join(texts)] if texts else [])]


class Changes:
    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory

    async def create(self, topic: str, channel: str = "", node: str = "") -> Change:
        """At all nsqlookupds, and on nodes that have the topic; or on one node, or, where there are
        no nsqlookupds, on all."""
        names = _names(topic, channel)
        change = Change()
        if node or not self._directory.lookupds:
            nodes = [node] if node else self._directory.nsqds
            await self._nsqds(change, nodes, "/topic/create", {"topic": topic})
            if channel:
                works = [each.node for each in change.told if each.ok]
                change.told = [each for each in change.told if not each.ok]
                await self._nsqds(change, works, "/channel/create", names)
            return change
        await self._lookupds(change, "/topic/create", {"topic": topic})
        if channel:
            change.told.clear()  # a nsqlookupd that failed fails again
            await self._lookupds(change, "/channel/create", names)
            await self._nsqds(
                change, await self._having(change, topic, required=False), "/channel/create", names
            )
        return change

    async def delete(self, topic: str, channel: str = "", node: str = "") -> Change:
        path, names = _path("delete", channel), _names(topic, channel)
        change = Change()
        if node:
            return await self._nsqds(change, [node], path, names)
        nodes = await self._having(change, topic)
        await self._lookupds(change, path, names)
        return await self._nsqds(change, nodes, path, names)

    async def act(self, action: str, topic: str, channel: str = "", node: str = "") -> Change:
        """pause, unpause, empty."""
        change = Change()
        nodes = [node] if node else await self._having(change, topic)
        if not nodes:
            raise Failed("failed to query any nsqd: ")
        return await self._nsqds(change, nodes, _path(action, channel), _names(topic, channel))

    async def tombstone(self, topic: str, node: str) -> Change:
        """Consumers stop going there, and the topic is deleted there."""
        change = Change()
        if node not in [each.address for each in (await self._directory.nodes()).nodes]:
            raise Failed(f"failed to query any nsqd: {node} is not in the cluster")
        known = await self._directory.node_at(node)
        query = {"topic": topic, "node": node}
        await self._lookupds(change, "/topic/tombstone", query)
        return await self._nsqds(change, [known.address], "/topic/delete", {"topic": topic})

    async def delete_hold(self, topic: str, hold: str, node: str = "") -> Change:
        change = Change()
        nodes = [node] if node else await self._having(change, topic)
        found = await self._post(nodes, "/hold/delete", {"topic": topic, "hold": hold})
        for each in nodes:
            change.told.append(_told_of_ours(found.errors.get(each), each))
        return change

    async def disconnect(self, topic: str, channel: str, client: str, node: str) -> Change:
        """Send a consumer away from a node; `client` is its address there."""
        query = {**_names(topic, channel), "client": client}
        try:
            told = await self._directory.upstream.post_as(
                DisconnectAnswer, node, "/channel/disconnect", query
            )
        except NodeFailure as error:
            return Change(told=[_told_of_ours(error, node)])
        return Change(told=[ChangeResult(node=node, ok=True, error="", in_flight=told.in_flight)])

    async def _having(self, change: Change, topic: str, *, required: bool = True) -> list[str]:
        """The nodes with the topic; Failed if nobody knows."""
        try:
            found = await self._directory.topic_nodes(topic)
        except Failed:
            if required:
                raise
            return []
        change.warnings += found.warnings
        return [node.address for node in found.nodes]

    async def _lookupds(self, change: Change, path: str, query: dict[str, str]) -> Change:
        found = await self._post(self._directory.lookupds, path, query)
        for address in self._directory.lookupds:
            change.told.append(_told(found.errors.get(address), lookupd=address))
        return change

    async def _nsqds(
        self, change: Change, nodes: Iterable[str], path: str, query: dict[str, str]
    ) -> Change:
        asked = list(nodes)
        found = await self._post(asked, path, query)
        for address in asked:
            change.told.append(_told(found.errors.get(address), node=address))
        return change

    async def _post(
        self, addresses: Iterable[str], path: str, query: dict[str, str]
    ) -> Outcome[str, bytes]:
        upstream = self._directory.upstream

        async def post(address: str) -> bytes:
            return await upstream.post(address, path, query)

        return await upstream.each(addresses, post)


def _told(error: NodeFailure | None, *, node: str = "", lookupd: str = "") -> ChangeResult:
    if error is None:
        return ChangeResult(node=node, lookupd=lookupd, ok=True, error="")
    return ChangeResult(
        node=node, lookupd=lookupd, ok=False, error=str(error), text=error.in_nsq_words()
    )


def _told_of_ours(error: NodeFailure | None, node: str) -> ChangeResult:
    """Of a change that only our nsqds know."""
    if error is not None and error.is_unknown_path:
        text = f"{node}: {STOCK_NSQD}"
        return ChangeResult(node=node, ok=False, error=STOCK_NSQD, text=text)
    return _told(error, node=node)


def _path(action: str, channel: str) -> str:
    return f"/channel/{action}" if channel else f"/topic/{action}"


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic, "channel": channel} if channel else {"topic": topic}
