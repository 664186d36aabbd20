"""Real daemons for your own tests, in this process: an nsqd starts in milliseconds.

    def test_orders(nsqd):  # a fixture, by the pytest plugin
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("orders", b"...")
        nsqd.wait_until_done("orders", "billing")

Without pytest:

    with LocalNsqd("--max-msg-size=1000") as nsqd, LocalNsqlookupd() as lookupd:
        ...

They are the real daemons: they take the same flags, listen on free ports of 127.0.0.1, and keep
their data in a temporary directory. All of them run on an event loop in a thread of their own, so
they continue while a test blocks.
"""

import asyncio
import json
import os
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote

from pumpline.cluster.access import NodeAccess
from pumpline.cluster.log import PAGE_MESSAGES_MAX, LogPage
from pumpline.cluster.node import ClusterNode, NodeFailure, decoded
from pumpline.core.text import flags
from pumpline.nsqadmin import options as nsqadmin_options
from pumpline.nsqadmin import server as nsqadmin_server
from pumpline.nsqd import options as nsqd_options
from pumpline.nsqd import server as nsqd_server
from pumpline.nsqd.claim import Claim
from pumpline.nsqlookupd import options as nsqlookupd_options
from pumpline.nsqlookupd import server as nsqlookupd_server
from pumpline.web.sockets import ListeningSockets

__all__ = ["LocalNsqadmin", "LocalNsqd", "LocalNsqlookupd"]

HTTP_TIMEOUT_S = 10.0
POLL_S = 0.005
FAST_RETRIES = "--max-req-timeout=0s"  # nsqd cuts a requeue's delay to this


class _Thread:
    """Where the daemons run: one thread for all of them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="nsqd", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self.loop)
        done.result()


_thread: _Thread | None = None
_thread_lock = threading.Lock()


def _daemon_thread() -> _Thread:
    global _thread  # noqa: PLW0603 - one per process, made when first needed
    with _thread_lock:
        if _thread is None or _thread.pid != os.getpid():  # a fork leaves threads behind
            _thread = _Thread()
        return _thread


class _Server(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _LocalDaemon(ABC):
    """A context manager. Tests of a restart call `start`, `stop` and `restart`."""

    def __init__(self, *given_flags: str) -> None:
        self.flags = list(given_flags)
        self.tcp_port = 0
        self.http_port = 0
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def tcp_address(self) -> str:
        """Host and port of the TCP protocol."""
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Host and port of the HTTP API."""
        return f"127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start it; again on the same ports, if it ran before."""
        if self._server is None:
            _daemon_thread().run(self._start())

    def stop(self) -> None:
        """Shut it down as SIGTERM does."""
        if self._server is not None:
            _daemon_thread().run(self._stop(self._server))

    def restart(self) -> None:
        """Stop it, and start it on the same ports with the same data."""
        self.stop()
        self.start()

    def get(self, path: str) -> bytes:
        """The reply of the HTTP API; OSError if its status is not 200."""
        return self._http("GET", path)

    def post(self, path: str, body: bytes = b"") -> bytes:
        """The reply of the HTTP API; OSError if its status is not 200."""
        return self._http("POST", path, body)

    def _http(self, method: str, path: str, body: bytes = b"") -> bytes:
        node = ClusterNode(self.http_address, NodeAccess(timeout_s=HTTP_TIMEOUT_S))
        try:
            return node.get(path) if method == "GET" else node.post(path, body=body)
        except NodeFailure as failure:
            raise OSError(f"{method} {path}: {failure}") from None
        finally:
            node.close()

    def _addresses(self) -> list[str]:
        return [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]

    @abstractmethod
    async def _start(self) -> None: ...

    async def _stop(self, server: _Server) -> None:
        self._server = None
        await server.close()


class LocalNsqd(_LocalDaemon):
    """An nsqd in this process, as a context manager."""

    def __init__(
        self,
        *given_flags: str,
        data_path: str | Path | None = None,
        fast_retries: bool = False,
    ) -> None:
        """The flags are those of nsqd. Without a data path, the `with` block deletes the data.

        With `fast_retries`, a requeued message comes again at once, whatever its delay is. nsqd
        then refuses a publish with `defer`.
        """
        super().__init__(*([FAST_RETRIES] if fast_retries else []), *given_flags)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data_path is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nsqd-")
            data_path = self._temporary.name
        self.data_path = Path(data_path)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._temporary is not None:
            self._temporary.cleanup()

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish messages over HTTP."""
        for body in bodies:
            self.post(f"/pub?topic={quote(topic)}", body)

    def messages(self, topic: str) -> list[bytes]:
        """The bodies of all messages that were published to the topic, in order, consumed or not;
        empty if there is no such topic. Messages that retention has deleted, and those of ephemeral
        topics, are missing."""
        if not self.stats(topic):
            return []
        bodies: list[bytes] = []
        path = f"/log/peek?topic={quote(topic)}&limit={PAGE_MESSAGES_MAX}"
        page = decoded(self.get(path), LogPage)
        bodies += [message.raw() for message in page.messages]
        while page.next < page.end:
            page = decoded(self.get(f"{path}&from={page.next}"), LogPage)
            bodies += [message.raw() for message in page.messages]
        return bodies

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """What /stats says of nsqd, of a topic or of a channel; empty if there is no such one."""
        if topic is None:
            return dict(json.loads(self.get("/stats?format=json")))
        found: dict[str, Any] = json.loads(self.get(f"/stats?format=json&topic={quote(topic)}"))
        for each in found["topics"] or ():
            if channel is None:
                return dict(each)
            for inner in each["channels"]:
                if inner["channel_name"] == channel:
                    return dict(inner)
        return {}

    def depth(self, topic: str, channel: str | None = None) -> int:
        """How many messages wait to be delivered; 0 if there is no such topic or channel."""
        return int(self.stats(topic, channel).get("depth", 0))

    def wait_until_done(self, topic: str, channel: str, timeout_s: float = 10.0) -> None:
        """Wait until the channel exists and all its messages are finished; TimeoutError if it takes
        longer."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            stats = self.stats(topic, channel)
            left = {
                name: stats[name]
                for name in ("depth", "in_flight_count", "deferred_count")
                if stats.get(name)
            }
            if stats and not left:
                return
            if time.monotonic() > deadline_s:
                what = left or "no such channel"
                raise TimeoutError(f"{topic}/{channel}: after {timeout_s:g} s {what}")
            time.sleep(POLL_S)

    async def _start(self) -> None:
        given = [
            *self._addresses(),
            "--broadcast-address=127.0.0.1",
            f"--data-path={self.data_path}",
            *self.flags,
        ]
        parsed = flags.parse(nsqd_options.FLAGS, given)
        options = nsqd_options.Options.from_sources(parsed.values, {})
        server = nsqd_server.Server(options, Claim(options))
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        self._server = server
        self.tcp_port = server.ports.tcp
        self.http_port = server.ports.http


class LocalNsqlookupd(_LocalDaemon):
    """An nsqlookupd in this process, as a context manager. The arguments are its flags."""

    async def _start(self) -> None:
        given = [*self._addresses(), "--broadcast-address=127.0.0.1", *self.flags]
        parsed = flags.parse(nsqlookupd_options.FLAGS, given)
        options = nsqlookupd_options.NsqlookupdOptions.from_sources(parsed.values, {})
        server = nsqlookupd_server.Nsqlookupd(
            options, ListeningSockets(options.program, options.addresses())
        )
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        self._server = server
        self.tcp_port = server.tcp_port
        self.http_port = server.http_port


class LocalNsqadmin(_LocalDaemon):
    """An nsqadmin in this process, as a context manager. The arguments are its flags, for example
    `--lookupd-http-address=…`."""

    async def _start(self) -> None:
        parsed = flags.parse(
            nsqadmin_options.FLAGS, [f"--http-address={self.http_address}", *self.flags]
        )
        options = nsqadmin_options.NsqadminOptions.from_sources(parsed.values, {})
        server = nsqadmin_server.Nsqadmin(
            options, ListeningSockets(options.program, options.addresses())
        )
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        self._server = server
        self.http_port = server.http_port
