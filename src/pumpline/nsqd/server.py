"""nsqd as a process: opens the data directory, starts the listeners, and ends in order."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from pumpline import NSQ_VERSION
from pumpline.core.protocol.expressions import ExpressionsMissing, require_expressions
from pumpline.core.text.addresses import is_loopback
from pumpline.log.directory import Directory, DirectoryError
from pumpline.log.run_mark import begin_run
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.claim import Claim
from pumpline.nsqd.discovery.session import Identity
from pumpline.nsqd.http.routes import nsqd_routes, tls_refusal
from pumpline.nsqd.options import Options, TlsRequired
from pumpline.nsqd.ports import Ports
from pumpline.nsqd.protocol.connection import Connection
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topics import Topics
from pumpline.nsqd.security.access import Authorities
from pumpline.nsqd.security.http_tokens import AccessTokenError, Gate
from pumpline.nsqd.security.tls import (
    TlsError,
    client_context,
    https_context,
    server_context,
    warn_of_policy,
)
from pumpline.nsqd.stats.memory import Memory
from pumpline.nsqd.stats.prometheus import Metrics
from pumpline.nsqd.stats.stats import Selection, gather
from pumpline.nsqd.stats.statsd import full_prefix
from pumpline.nsqd.stats.statsd_push import StatsdPush
from pumpline.nsqd.storage.disk import Disk
from pumpline.web.hosts import answers_any_host, own_hosts
from pumpline.web.listeners import Listeners
from pumpline.web.server import HttpServer
from pumpline.web.sockets import StartupError
from pumpline.web.yielding import Pace

# Disk work has threads of its own. asyncio's default pool (6 threads on 2 cores) also resolves host
# names: with 6 lookups that a dead DNS server keeps for 10 s each, an fsync would wait as long.
# Reads, fsyncs and checkpoints do not share threads either: behind slow fsyncs of 80 topics, a
# checkpoint that is to be written every 100 ms waited for 3.4 s.
READ_THREADS = 4
FSYNC_THREADS = 4
CHECKPOINT_THREADS = 1  # one is under way at a time

_LOG = logging.getLogger(__name__)


class Server:
    def __init__(self, options: Options, claim: Claim) -> None:
        """The claim is the server's from here on; `close` releases it."""
        self.options = options
        self._claim = claim
        self.loop = asyncio.get_running_loop()
        self._read_threads = ThreadPoolExecutor(READ_THREADS, "nsqd-read")
        self._fsync_threads = ThreadPoolExecutor(FSYNC_THREADS, "nsqd-fsync")
        self._checkpoint_threads = ThreadPoolExecutor(CHECKPOINT_THREADS, "nsqd-checkpoint")
        self.directory = Directory(claim.data_path.path)
        self.broker: Broker | None = None
        self.ports = Ports()
        self.memory = Memory()
        self._http: list[HttpServer] = []
        self._metrics: Metrics | None = None
        self._statsd: StatsdPush | None = None
        self._auth_servers: Authorities | None = None
        self._gate: Gate | None = None
        self._https_tls: ssl.SSLContext | None = None
        self._listeners = Listeners(claim.sockets)
        self._left_lookupds = False
        self._closed = False

    async def start(self) -> None:
        try:
            self.directory.prepare()
            is_synced = self.options.sync_every <= 1
            self.directory.losses = begin_run(self.directory.path, is_synced=is_synced)
        except (DirectoryError, OSError) as error:
            raise StartupError(str(error)) from error
        tls = self._open_doors()
        tick = Tick(self.loop.call_soon, later=self._later)
        disk = Disk(
            self.directory,
            self.options,
            clocks=tick.read_clocks,
            offload=partial(self._offload, self._read_threads),
            offload_fsync=partial(self._offload, self._fsync_threads),
            offload_checkpoint=partial(self._offload, self._checkpoint_threads),
            later=self._later,
        )
        broker = Broker(self.options, tick, disk)
        await self._load(broker.topics)
        self.broker = broker  # from here on, closing writes what there is
        try:
            await broker.metadata.persist()
        except OSError as error:
            # A full disk must not keep consumers from draining it.
            disk.health.failed(error, "metadata")
            broker.retention.run()
        broker.retention.start()
        auth_servers = self._auth_servers
        self.ports.tcp = await self._listen(
            "TCP",
            lambda: Connection(broker.connections, tls=tls, auth_servers=auth_servers),
        )
        self._metrics = metrics = Metrics(broker, memory=self.memory, http=self._http)
        await self._listen_http(broker, metrics)
        self._tell_ports()
        broker.lookups.start(self._identity())
        self.memory.watch()
        metrics.watch(self.loop)
        if self.options.statsd_address:
            self._push_to_statsd(broker)
        await self._listeners.start()
        broker.serving = True

    async def _load(self, topics: Topics) -> None:
        """Bring back what is in the data directory: in a thread, as checking damaged files takes
        long, then topic by topic."""
        try:
            stored = await self.loop.run_in_executor(
                self._read_threads, lambda: list(topics.stored())
            )
            pace = Pace()
            for each in stored:
                topics.restore(each)
                await pace.breathe()
        except (DirectoryError, OSError) as error:
            raise StartupError(f"failed to load metadata - {error}") from error

    @property
    def drain_wanted(self) -> asyncio.Event:
        """Set when somebody asks for an end over HTTP."""
        assert self.broker is not None
        return self.broker.draining.wanted

    async def drain(self, hurry: asyncio.Event) -> None:
        """Take on nothing new, and let consumers finish what they have; see `nsqd.draining`."""
        if self.broker is None:
            return
        self.broker.draining.begin()
        self._listeners.close("TCP")
        await self._leave_lookupds(self.broker)
        await self.broker.draining.wait(hurry)

    async def _leave_lookupds(self, broker: Broker) -> None:
        if not self._left_lookupds:
            self._left_lookupds = True
            await broker.lookups.close()

    def reload(self) -> bool:
        """Read again what may have changed while we run: the tokens for the HTTP API."""
        if self._gate is not None and self.options.http_token_file:
            self._gate.reload()
        return bool(self.options.http_token_file)

    async def close(self) -> None:
        self._listeners.close()
        if self._statsd is not None:
            await self._statsd.close()
        if self.broker is not None:
            await self._leave_lookupds(self.broker)
            self.broker.connections.close()
            await asyncio.sleep(0)
            await asyncio.gather(*(http.close() for http in self._http))
            await self.broker.close()
        self._closed = True
        if self._auth_servers is not None:
            await self._auth_servers.close()
        if self._metrics is not None:
            self._metrics.close()
        self.memory.close()
        for threads in (self._read_threads, self._fsync_threads, self._checkpoint_threads):
            threads.shutdown()
        self._claim.release()

    def _later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer that does nothing once the server is closed, as the loop may outlive it."""
        return self.loop.call_later(delay_s, self._on_timer, callback)

    def _on_timer(self, callback: Callable[[], None]) -> None:
        if not self._closed:
            callback()

    def _offload(
        self, threads: ThreadPoolExecutor, job: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        """Run `job` in a thread, then `done` with its result or exception, here."""

        def finished(future: "Future[Any]") -> None:
            result = future.exception() or future.result()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(done, result)

        threads.submit(job).add_done_callback(finished)

    def _open_doors(self) -> ssl.SSLContext | None:
        """Get ready what decides on who comes in: TLS for clients, and the auth servers."""
        options = self.options
        try:
            tls = server_context(options)
            self._https_tls = https_context(options)
        except TlsError as error:
            raise StartupError(
                f"failed to instantiate nsqd - failed to build TLS config - {error}"
            ) from error
        warn_of_policy(options)
        if options.auth_http_address:
            try:
                require_expressions()
            except ExpressionsMissing as error:
                raise StartupError(
                    f"failed to instantiate nsqd - --auth-http-address {error}"
                ) from None
        if options.auth_http_address or options.tls_root_ca_file:
            # Only then: loading the system's authorities is most of the time a start takes.
            try:
                context = client_context(options)
            except TlsError as error:
                raise StartupError(
                    f"failed to instantiate nsqd - failed to build client TLS config - {error}"
                ) from error
            if options.auth_http_address:
                # Here: its HTTP client takes longer to import than all the rest of nsqd.
                from pumpline.nsqd.security.auth_servers import AuthServers

                self._auth_servers = AuthServers(options, context)
        certificates = bool(options.http_client_ca_file)
        if options.http_token_file or certificates:
            try:
                self._gate = Gate(token_path=options.http_token_file, certificates=certificates)
            except AccessTokenError as error:
                raise StartupError(f"failed to instantiate nsqd - {error}") from None
        elif options.auth_http_address:
            _LOG.info(
                "HTTP: /log, /hold and changes of settings are closed, as there is "
                "--auth-http-address; "
                "--http-token-file or --http-client-ca-file would open them to those who may"
            )
        return tls

    async def _listen_http(self, broker: Broker, metrics: Metrics) -> None:
        hosts = own_hosts(self.options.broadcast_address, *self.options.http_host)
        routes = nsqd_routes(
            broker,
            ports=self.ports,
            memory=self.memory,
            metrics=metrics,
            lookupds_changed=broker.lookups.update,
            guarded=self._gate is not None,
            log_is_closed=self._gate is None and bool(self.options.auth_http_address),
            own_hosts=hosts,
        )
        refuses = self.options.tls_required is TlsRequired.YES
        refusal = (lambda: tls_refusal(self.ports)) if refuses else None
        gate = None if self._gate is None else self._gate.check
        if self.options.http_address:
            any_host = self._answers_any_host("HTTP")
            http = HttpServer(
                routes, refusal=refusal, gate=gate, own_hosts=hosts, any_host=any_host
            )
            self._http.append(http)
            guarded = refuses or gate is not None
            self.ports.http = await self._listen("HTTP", http, guarded=guarded)
        if self.options.https_address and self._https_tls is not None:
            any_host = self._answers_any_host("HTTPS")
            https = HttpServer(routes, gate=gate, own_hosts=hosts, any_host=any_host)
            self._http.append(https)
            self.ports.https = await self._listen(
                "HTTPS",
                https,
                tls=self._https_tls,
                guarded=bool(gate or self.options.tls_client_auth_policy),
            )

    def _answers_any_host(self, listener: str) -> bool:
        return answers_any_host(self._claim.sockets.by_name[listener], self.options.http_host)

    def _tell_ports(self) -> None:
        """Ports to broadcast are those in use unless the options say otherwise; statsd's keys
        hold one of them."""
        options = self.options
        options.broadcast_tcp_port = options.broadcast_tcp_port or max(self.ports.tcp, 0)
        options.broadcast_http_port = options.broadcast_http_port or max(self.ports.http, 0)
        options.statsd_prefix = full_prefix(
            options.statsd_prefix, options.broadcast_address, options.broadcast_http_port
        )

    def _push_to_statsd(self, broker: Broker) -> None:
        memory = self.memory if self.options.statsd_mem_stats else None
        everything = Selection(clients=False)
        self._statsd = StatsdPush(self.options, lambda: gather(broker, everything, memory))
        self._statsd.start()

    def _identity(self) -> Identity:
        """What the lookupds are told."""
        options = self.options
        return Identity(
            broadcast_address=options.broadcast_address,
            hostname=socket.gethostname(),
            http_port=options.broadcast_http_port,
            tcp_port=options.broadcast_tcp_port,
            topology_region=options.topology_region,
            topology_zone=options.topology_zone,
            version=NSQ_VERSION,
        )

    async def _listen(
        self,
        name: str,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        guarded: bool = True,
    ) -> int:
        """Have connections at that address served; returns the port. `guarded`: not open to
        everybody."""
        bound = await self._listeners.prepare(name, make, tls=tls)
        if not guarded and not bound.is_unix and not is_loopback(bound.host):
            _LOG.warning(
                "%s: whoever can reach %s may publish, delete and read messages; "
                "--http-token-file or --http-client-ca-file would prevent that",
                name,
                bound.shown,
            )
        return bound.port
