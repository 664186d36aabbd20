"""Nodes for an event loop: every request is done by `ClusterNode`, in a daemon thread of its own.

One transport serves everybody, and it blocks. Beside aiohttp a request costs 0.2 ms more, which
nsqadmin does not notice: it asks each node every 2 s.

| bounded                | by                                                           |
|------------------------|--------------------------------------------------------------|
| threads with requests  | THREADS_MAX; further requests wait                           |
| threads with tails     | TAILS_MAX; a further tail fails                              |
| one request            | `timeout_s`, from connecting to the last byte                |
| pieces of a tail       | PIECES_MAX wait to be taken; then the thread stops reading   |
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from pumpline.client.http_connection import HttpRequestError, in_thread
from pumpline.cluster.access import NodeAccess
from pumpline.cluster.client import K, Outcome
from pumpline.cluster.node import NO_QUERY, ClusterNode, NodeFailure, Query, decoded

ASKED_MAX = 64  # side by side
THREADS_MAX = 4 * ASKED_MAX  # several may ask at once
TAILS_MAX = 256
PIECES_MAX = 16
KEPT_MAX = 4  # connections to a node, for the next request
SILENCE_S = 60.0  # of a tail, in which nsqd sends a sign of life every 15 s

T = TypeVar("T")


class AsyncNodes:
    def __init__(
        self, access: NodeAccess, *, timeout_s: float | None, lookupds: Collection[str] = ()
    ) -> None:
        """`timeout_s`: for a whole request; None: no limit. `lookupds`: these addresses get no
        access token."""
        self.access = access
        self._timeout_s = timeout_s
        self._lookupds = lookupds
        self._room = asyncio.Semaphore(THREADS_MAX)
        self._tails = 0
        self._kept: dict[str, list[ClusterNode]] = {}
        self._origins: dict[str, str] = {}  # of nodes that require TLS
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for nodes in self._kept.values():
            for node in nodes:
                node.close()
        self._kept.clear()

    async def get(self, address: str, path: str, query: Query = NO_QUERY) -> bytes:
        """The reply, of status 200, or NodeFailure."""
        return await self.run(address, lambda node: node.get(path, query))

    async def get_as(self, kind: type[T], address: str, path: str, query: Query = NO_QUERY) -> T:
        return decoded(await self.get(address, path, query), kind, address)

    async def post(
        self, address: str, path: str, query: Query = NO_QUERY, body: bytes = b""
    ) -> bytes:
        return await self.run(address, lambda node: node.post(path, query, body))

    async def post_as(
        self, kind: type[T], address: str, path: str, query: Query = NO_QUERY, body: bytes = b""
    ) -> T:
        return decoded(await self.post(address, path, query, body), kind, address)

    async def run(
        self, address: str, work: Callable[[ClusterNode], T], *, is_long: bool = False
    ) -> T:
        """Do blocking work with a node, in a thread. `is_long`: it is many requests, each of which
        has its own limit."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        node = self._take(address)

        def whole() -> T:
            try:
                return work(node)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._give_back, address, node)

        try:
            timeout_s = None if is_long else self._timeout_s
            return await in_thread(whole, timeout_s=timeout_s, abort=node.abort)
        except HttpRequestError as error:
            raise NodeFailure(str(error), address=address) from None
        except RuntimeError as error:  # there are too many threads
            self._room.release()
            raise NodeFailure(f"this machine cannot ask it: {error}", address=address) from None

    async def each(self, keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> Outcome[K, T]:
        """Ask for all keys side by side."""
        asked = list(dict.fromkeys(keys))
        room = asyncio.Semaphore(ASKED_MAX)

        async def one(key: K) -> T | NodeFailure:
            async with room:
                try:
                    return await ask(key)
                except NodeFailure as failure:
                    return failure

        outcome: Outcome[K, T] = Outcome({}, {})
        for key, said in zip(asked, await asyncio.gather(*map(one, asked)), strict=True):
            if isinstance(said, NodeFailure):
                outcome.errors[key] = said
            else:
                outcome.answers[key] = said
        return outcome

    @asynccontextmanager
    async def tail(
        self, address: str, path: str, query: Query
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A reply without end, in pieces."""
        if self._tails >= TAILS_MAX:
            raise NodeFailure(f"more than {TAILS_MAX} tails are open", address=address)
        loop = asyncio.get_running_loop()
        access = replace(self.access, timeout_s=SILENCE_S)
        node = ClusterNode(address, access, origin=self._origins.get(address, ""))
        waiting: asyncio.Queue[bytes | NodeFailure | None] = asyncio.Queue()  # PIECES_MAX at most
        room = threading.Semaphore(PIECES_MAX)

        def read() -> None:
            end: NodeFailure | None = None
            try:
                for piece in node.stream(path, query):
                    room.acquire()
                    if node.is_aborted:
                        return
                    loop.call_soon_threadsafe(waiting.put_nowait, piece)
            except NodeFailure as failure:
                end = failure
            loop.call_soon_threadsafe(waiting.put_nowait, end)

        async def pieces() -> AsyncIterator[bytes]:
            while isinstance(piece := await waiting.get(), bytes):
                room.release()
                yield piece
            if piece is not None:
                raise piece

        self._tails += 1
        reading = asyncio.ensure_future(in_thread(read, timeout_s=None, abort=node.abort))
        try:
            received = pieces()
            await anext(received)  # the status is 200
            yield received
        finally:
            node.abort()
            room.release()
            reading.add_done_callback(self._tail_ended)

    def _tail_ended(self, reading: "asyncio.Future[None]") -> None:
        self._tails -= 1
        if not reading.cancelled():
            reading.exception()  # it is in the pieces already

    def _take(self, address: str) -> ClusterNode:
        kept = self._kept.get(address)
        if kept:
            return kept.pop()
        return ClusterNode(
            address,
            self.access,
            is_nsqlookupd=address in self._lookupds,
            origin=self._origins.get(address, ""),
        )

    def _give_back(self, address: str, node: ClusterNode) -> None:
        self._room.release()
        if node.origin != f"http://{node.address}":
            self._origins[address] = node.origin
        kept = self._kept.setdefault(address, [])
        if node.is_aborted or self._is_closed or len(kept) >= KEPT_MAX:
            node.close()
        else:
            kept.append(node)
