"""nsqd's HTTP API: the table of its routes, and the endpoints that only tell.

Publishing is in `publish`, managing topics and channels in `admin`, reading by offset in `log`,
`peek` and `holds`, options in `config`, looking into the process in `debug`; requests and replies
are `web`'s.
"""

import socket
import time
from collections.abc import Callable

from pumpline import NSQ_VERSION
from pumpline.core.messages import kernels
from pumpline.core.text.version import version_line
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.http.admin import AdminEndpoints
from pumpline.nsqd.http.config import ConfigEndpoints
from pumpline.nsqd.http.debug import free_memory
from pumpline.nsqd.http.drain import DrainEndpoints
from pumpline.nsqd.http.holds import HoldEndpoints
from pumpline.nsqd.http.log import LogEndpoints
from pumpline.nsqd.http.peek import PeekEndpoints
from pumpline.nsqd.http.publish import PublishEndpoints
from pumpline.nsqd.http.settings import BODY_BYTES_MAX, SettingsEndpoints
from pumpline.nsqd.ports import Ports
from pumpline.nsqd.security.http_tokens import require_certificate
from pumpline.nsqd.stats.memory import Memory
from pumpline.nsqd.stats.oldest import OldestTimes
from pumpline.nsqd.stats.prometheus import Metrics
from pumpline.nsqd.stats.stats import Selection, Stats, gather
from pumpline.nsqd.stats.text import text_lines
from pumpline.web.endpoint import Access, BodyLimit, Endpoint, Handler
from pumpline.web.hosts import OwnHosts
from pumpline.web.pprof import command_line, pprof_index
from pumpline.web.query import BOOLEANS
from pumpline.web.replies import Reply, json_reply, plain_reply, text_reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.yielding import Pace


def nsqd_routes(
    broker: Broker,
    *,
    ports: Ports,
    memory: Memory,
    metrics: Metrics,
    lookupds_changed: Callable[[], None],
    guarded: bool,
    log_is_closed: bool,
    own_hosts: OwnHosts,
) -> Routes[Endpoint]:
    """All of nsqd's endpoints. `lookupds_changed`: see `http_config`; `guarded`: there is a gate;
    `log_is_closed`: there is none, and yet not everybody may see messages.

    An endpoint that shows messages says so by its `access`; see `broker.access`.
    """
    options = broker.options
    figures = FigureEndpoints(broker, ports, memory, metrics.oldest)
    config = ConfigEndpoints(options, lookupds_changed=lookupds_changed)
    table = {
        ("GET", "/ping"): Endpoint(figures.ping),
        ("GET", "/info"): Endpoint(figures.info),
        ("GET", "/stats"): Endpoint(figures.stats),
        ("GET", "/metrics"): Endpoint(metrics.get),
        ("GET", "/config/:opt"): Endpoint(config.get),
        ("PUT", "/config/:opt"): Endpoint(
            config.put, body=BodyLimit(options.max_msg_size, "INVALID_VALUE")
        ),
    }
    table |= _publish_endpoints(broker)
    drain = DrainEndpoints(broker, guarded=guarded, own_hosts=own_hosts)
    table["GET", "/ready"] = Endpoint(drain.ready, quiet=True)
    table["POST", "/drain"] = Endpoint(drain.drain)
    settings = SettingsEndpoints(broker)
    table["GET", "/topic/settings"] = Endpoint(settings.get)
    closed = require_certificate if log_is_closed else None
    table["POST", "/topic/settings"] = Endpoint(
        settings.post,
        body=BodyLimit(BODY_BYTES_MAX, "BODY_TOO_BIG"),
        check=closed,  # they can send a topic's messages to another topic, as dead letters
    )
    log = LogEndpoints(broker)
    for method, path, handler in _log_paths(broker, log):
        table[method, path] = Endpoint(
            handler,
            access=Access.READ_LOG,
            check=closed,
        )
    for path, handler in _admin_paths(AdminEndpoints(broker, log)).items():
        table["POST", path] = Endpoint(handler)
    for method, path, handler in _debug_paths():
        table[method, path] = Endpoint(handler, access=Access.MUTATE)
    return Routes(table)


def _publish_endpoints(broker: Broker) -> dict[tuple[str, str], Endpoint]:
    options = broker.options
    publish = PublishEndpoints(broker)
    return {
        ("POST", "/pub"): Endpoint(
            publish.pub,
            quiet=True,
            body=BodyLimit(options.max_msg_size, "MSG_TOO_BIG"),
            bind=publish.bind_pub,
        ),
        ("POST", "/mpub"): Endpoint(
            publish.mpub,
            quiet=True,
            body=BodyLimit(options.max_body_size, "BODY_TOO_BIG"),
            check=publish.check_mpub,
        ),
    }


def _admin_paths(admin: AdminEndpoints) -> dict[str, Handler]:
    return {
        "/topic/create": admin.create_topic,
        "/topic/delete": admin.delete_topic,
        "/topic/empty": admin.empty_topic,
        "/topic/pause": admin.pause_topic,
        "/topic/unpause": admin.unpause_topic,
        "/channel/create": admin.create_channel,
        "/channel/delete": admin.delete_channel,
        "/channel/empty": admin.empty_channel,
        "/channel/seek": admin.seek_channel,
        "/channel/pause": admin.pause_channel,
        "/channel/unpause": admin.unpause_channel,
        "/channel/disconnect": admin.disconnect_client,
    }


def _log_paths(broker: Broker, log: LogEndpoints) -> list[tuple[str, str, Handler]]:
    peek = PeekEndpoints(log)
    holds = HoldEndpoints(broker, log)
    return [
        ("GET", "/log/offsets", log.offsets),
        ("GET", "/log/raw", log.raw),
        ("GET", "/log/files", log.files),
        ("GET", "/log/peek", peek.peek),
        ("GET", "/log/tail", peek.tail),
        ("POST", "/hold/create", holds.create),
        ("POST", "/hold/commit", holds.commit),
        ("POST", "/hold/delete", holds.delete),
        ("GET", "/hold/list", holds.list),
    ]


def _debug_paths() -> list[tuple[str, str, Handler]]:
    return [
        ("GET", "/debug/pprof/", pprof_index),
        ("GET", "/debug/pprof/cmdline", command_line),
        ("POST", "/debug/freememory", free_memory),
    ]


def tls_refusal(ports: Ports) -> Reply:
    """What plain HTTP answers to everything when TLS is required; the spaces are NSQ's."""
    refused = json_reply(None, status=403)
    body = f'{{"message": "TLS_REQUIRED", "https_port": {ports.https}}}'.encode()
    return Reply(status=403, body=body, headers=refused.headers)


class FigureEndpoints:
    def __init__(self, broker: Broker, ports: Ports, memory: Memory, oldest: OldestTimes) -> None:
        self._broker = broker
        self._ports = ports
        self._memory = memory
        self._started_ns = time.monotonic_ns()
        self._oldest = oldest

    def ping(self, request: Request) -> Reply:
        health = self._broker.disk.health
        return plain_reply(str(health), status=200 if health.error is None else 500)

    def info(self, request: Request) -> Reply:
        options = self._broker.options
        return json_reply(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": self._ports.http,
                "tcp_port": self._ports.tcp,
                "start_time": self._broker.started_at_s,
                "max_heartbeat_interval": options.max_heartbeat_interval_ns,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
        )

    async def stats(self, request: Request) -> Reply:
        query = request.query()
        selection = Selection.asked(query, clients=True)
        with_memory = BOOLEANS.get(query.get("include_mem", ""), True)
        memory = self._memory if with_memory else None
        if query.get("format") == "json":
            return json_reply(await gather(self._broker, selection, memory, self._oldest))
        stats = await gather(self._broker, selection, memory)
        return text_reply(await self._text(stats))

    async def _text(self, stats: Stats) -> str:
        pace = Pace()
        pieces = []
        lines = text_lines(
            stats,
            program=version_line("nsqd", kernels=kernels.form),
            now_s=time.time_ns() // 1_000_000_000,
            uptime_ns=time.monotonic_ns() - self._started_ns,
        )
        for piece in lines:
            pieces.append(piece)
            await pace.breathe()
        return "".join(pieces)
