"""An HTTP server: the connections of a listener, what they share, and an end in order.

Everything a client sends or fails to send is bounded: heads, bodies, requests begun on a connection
(all in `web.connection`), and all waiting by `Patience`. Knows nothing of topics, channels or what
the routes are for.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from pumpline.web.connection import HttpConnection
from pumpline.web.endpoint import Endpoint, RequestGate
from pumpline.web.exchange import Shared
from pumpline.web.hosts import OwnHosts
from pumpline.web.replies import Reply
from pumpline.web.routes import Routes
from pumpline.web.site import Site
from pumpline.web.time_limits import Patience, TimeLimits


class HttpServer:
    """A protocol factory: call it for each connection of a listener; `close` ends them all."""

    def __init__(
        self,
        routes: Routes[Endpoint],
        *,
        refusal: Callable[[], Reply] | None = None,
        gate: RequestGate | None = None,
        own_hosts: OwnHosts | None = None,
        any_host: bool = True,
        patience: Patience | None = None,
    ) -> None:
        """`refusal`, if given, answers everything. Without a `gate` anybody may do anything, but
        for other people's web pages: `web.origins` and `web.hosts` have that, and what `own_hosts`
        and `any_host` are for."""
        self._site = Site(
            routes, gate=gate, refusal=refusal, own_hosts=own_hosts, any_host=any_host
        )
        self._shared: Shared[HttpConnection] = Shared(self._site, patience or Patience())
        self._limits = TimeLimits(
            self._shared.patience, self._shared.connections, self._shared.buffers.forget
        )

    def __call__(self) -> HttpConnection:
        self._limits.start()
        return HttpConnection(self._shared)

    @property
    def replies(self) -> Counter[int]:
        """How many were sent, by status."""
        return self._site.replies

    @property
    def connection_count(self) -> int:
        return len(self._shared.connections)

    @property
    def dropped_count(self) -> int:
        """Clients that did not take their replies."""
        return self._limits.dropped_count + self._shared.unsent.dropped_count

    async def close(self) -> None:
        """Let requests under way finish, for a while, then close all connections."""
        shared = self._shared
        stop_s = shared.patience.stop_s
        for connection in list(shared.connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(stop_s):
                await shared.nobody.wait()
        for connection in list(shared.connections):
            connection.abort()
        for task in shared.tasks:
            task.cancel()
        if shared.tasks:
            await asyncio.wait(shared.tasks, timeout=stop_s)
        self._limits.close()
        self._site.close()
