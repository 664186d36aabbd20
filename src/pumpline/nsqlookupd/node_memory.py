"""The file in which nsqlookupd keeps the nodes across its own restart.

    DATA_PATH/nsqlookupd.nodes.json := {"format": 1, "nodes": [node*]}
    node := {broadcast_address, tcp_port, http_port, hostname, version, topology_zone,
             topology_region, topics, any_topic, lost_at}

`lost_at` is in nanoseconds since 1970, and 0 if the node was connected. After a restart all nodes
of the file are lost until they have registered again, which takes seconds: a reader that asks
meanwhile is told of all of them.

The file is replaced as a whole, and fsynced, so that a crash leaves the old content or the new. It
is written at most once a second, and for at most a tenth of the time; changes since are not in it
after a kill. Knows files and the registry; must not know HTTP.
"""

import asyncio
import logging
import os
import time
from contextlib import suppress

import msgspec

from pumpline.log.files import BAD, write_whole
from pumpline.nsqlookupd.lost_nodes import LostNode, LostNodes
from pumpline.nsqlookupd.registry import NodeIdentity, Registry
from pumpline.web.sockets import StartupError
from pumpline.web.yielding import Pace

NAME = "nsqlookupd.nodes.json"
FORMAT = 1
SAVE_S = 1.0  # between two saves, at least
REST = 9  # times as long as the last save took
FILE_BYTES_MAX = 1 << 30

_LOG = logging.getLogger(__name__)


class SavedNode(msgspec.Struct, kw_only=True):
    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str = ""
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    topics: list[str]
    any_topic: bool = False
    lost_at: int = 0


class SavedNodes(msgspec.Struct):
    format: int
    nodes: list[SavedNode]


class NodeMemory:
    def __init__(self, data_path: str, registry: Registry, lost: LostNodes) -> None:
        self.path = os.path.join(data_path, NAME)
        self.failures = 0  # writes
        self._registry = registry
        self._lost = lost
        self._saved_revision = -1
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def load(self) -> None:
        """StartupError if the directory cannot be used. A damaged file is put aside."""
        now_ns = time.time_ns()
        for saved in self._read():
            identity = NodeIdentity(
                hostname=saved.hostname,
                broadcast_address=saved.broadcast_address,
                tcp_port=saved.tcp_port,
                http_port=saved.http_port,
                version=saved.version,
                topology_zone=saved.topology_zone,
                topology_region=saved.topology_region,
            )
            # A node that was connected is away since this process started, for all it knows.
            since_ns = saved.lost_at or now_ns
            entry = LostNode(identity, since_ns, set(saved.topics), saved.any_topic)
            self._lost.restore(entry)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Save once more. To be called while the nodes are still connected."""
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _keep(self) -> None:
        while not self._closing.is_set():
            began_s = time.monotonic()
            await self._save()
            rest_s = max(SAVE_S, REST * (time.monotonic() - began_s))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), rest_s)
        await self._save()

    async def _save(self) -> None:
        revision = self._lost.revision
        if revision == self._saved_revision:
            return
        data = await self._encode()
        try:
            await asyncio.to_thread(write_whole, self.path, data, sync=True)
        except OSError as error:
            self.failures += 1
            _LOG.error("failed to write %s - %s", self.path, error.strerror or error)
        else:
            self._saved_revision = revision

    async def _encode(self) -> bytes:
        """Node by node, as each may have 100,000 topics."""
        pace = Pace()
        parts: list[bytes] = []
        for node in list(self._registry.nodes):
            if node in self._registry.nodes:  # it may have left since
                parts.append(_saved(node.identity, list(node.topics)))
            await pace.breathe()
        for entry in self._lost.all():
            topics = list(entry.topics)
            since_ns = 0 if entry.returned else entry.lost_ns
            parts.append(_saved(entry.identity, topics, entry.any_topic, since_ns))
            await pace.breathe()
        return b'{"format":%d,"nodes":[\n%b\n]}\n' % (FORMAT, b",\n".join(parts))

    def _read(self) -> list[SavedNode]:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "rb") as file:
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StartupError(f"--data-path: {self.path}: {error.strerror or error}") from None
        try:
            found = msgspec.json.decode(data, type=SavedNodes)
            if found.format != FORMAT:
                raise ValueError(f"format {found.format}")
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            os.replace(self.path, self.path + BAD)
            _LOG.error(
                "%s cannot be read and is now %s: nodes that are away are not known until they "
                "have registered - %s",
                *(self.path, self.path + BAD, error),
            )
            return []
        return found.nodes


def _saved(
    identity: NodeIdentity, topics: list[str], any_topic: bool = False, lost_at: int = 0
) -> bytes:
    return msgspec.json.encode(
        SavedNode(
            broadcast_address=identity.broadcast_address,
            tcp_port=identity.tcp_port,
            http_port=identity.http_port,
            hostname=identity.hostname,
            version=identity.version,
            topology_zone=identity.topology_zone,
            topology_region=identity.topology_region,
            topics=topics,
            any_topic=any_topic,
            lost_at=lost_at,
        )
    )
