"""nsqadmin as a whole: whom it asks, what it serves, and an orderly end.

Knows every room of nsqadmin and joins them.
"""

import logging
import ssl

from pumpline.cluster.access import AccessError, AccessNames, NodeAccess, token_in
from pumpline.cluster.async_nodes import AsyncNodes
from pumpline.core.protocol.verification import verifying_context
from pumpline.core.text.durations import NS_PER_S
from pumpline.nsqadmin.access import AdminUsers, ConfigGuard
from pumpline.nsqadmin.api.actions import ActionEndpoints
from pumpline.nsqadmin.api.config import AdminConfigEndpoints
from pumpline.nsqadmin.api.dead_letters import DeadLetterEndpoints
from pumpline.nsqadmin.api.events import LiveEvents
from pumpline.nsqadmin.api.graphite import GraphiteEndpoints
from pumpline.nsqadmin.api.messages import MessageEndpoints
from pumpline.nsqadmin.api.nsq import NsqEndpoints
from pumpline.nsqadmin.api.nsq_changes import NsqChangeEndpoints
from pumpline.nsqadmin.api.session import SessionEndpoint
from pumpline.nsqadmin.api.settings import TopicSettingsEndpoints
from pumpline.nsqadmin.api.tail import TailEndpoint
from pumpline.nsqadmin.api.topic_nodes import TopicNodes
from pumpline.nsqadmin.api.views import PageViews
from pumpline.nsqadmin.cluster.changes import Changes
from pumpline.nsqadmin.cluster.directory import ClusterDirectory
from pumpline.nsqadmin.http import (
    act_table,
    config_table,
    graphite_table,
    message_table,
    metrics_table,
    nsq_table,
    page_table,
    under,
    view_table,
)
from pumpline.nsqadmin.live.closeups import Closeups
from pumpline.nsqadmin.live.poller import ClusterPoller
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.nsqadmin.metrics import AdminMetrics
from pumpline.nsqadmin.notifications import ANSWER_BYTES_MAX, Notifier
from pumpline.nsqadmin.options import LISTENER, NsqadminOptions
from pumpline.nsqadmin.pages import Pages
from pumpline.web.hosts import answers_any_host, own_hosts
from pumpline.web.http_client import Asker
from pumpline.web.listeners import Listeners
from pumpline.web.server import HttpServer
from pumpline.web.sockets import ListeningSockets, StartupError

GRAPHITE_BYTES_MAX = 16 << 20
NSQADMIN_NAMES = AccessNames(
    nsqd="--nsqd-http-address",
    lookupd="--lookupd-http-address",
    token="--nsqd-token-file",
    token_file="--nsqd-token-file",
    ca_file="--http-client-tls-root-ca-file",
    cert_file="--http-client-tls-cert",
    key_file="--http-client-tls-key",
)
OTHERS_REQUESTS_MAX = 16  # to Graphite, and to the endpoint of notifications

_LOG = logging.getLogger(__name__)


class Nsqadmin:
    def __init__(self, options: NsqadminOptions, sockets: ListeningSockets) -> None:
        """The sockets are the server's from here on; `close` closes them."""
        self.options = options
        self.http_port = 0  # once it has started
        self._listeners = Listeners(sockets)
        self._any_host = answers_any_host(sockets.by_name[LISTENER], options.http_host)
        self._users = AdminUsers(options)
        self._access: NodeAccess | None = None
        self._upstream: AsyncNodes | None = None
        self._notifier: Notifier | None = None
        self._graphite: Asker | None = None
        self._poller: ClusterPoller | None = None
        self._closeups: Closeups | None = None
        self._metrics: AdminMetrics | None = None
        self._http: HttpServer | None = None

    async def start(self) -> None:
        options = self.options
        access = self._access = node_access(options)
        tls = access.tls()
        upstream = self._upstream = AsyncNodes(
            access,
            timeout_s=access.timeout_s,
            lookupds=options.lookupd_http_address,
        )
        directory = ClusterDirectory(upstream, options)
        self._notifier = Notifier(
            options.notification_http_endpoint, self._users, self._asker(ANSWER_BYTES_MAX, tls)
        )
        is_https = options.graphite_url.startswith("https:")
        self._graphite = self._asker(GRAPHITE_BYTES_MAX, verifying_context() if is_https else None)
        changes = Changes(directory)
        state = ClusterState()
        poller = self._poller = ClusterPoller(directory, state)
        closeups = self._closeups = Closeups(directory, state)
        nodes = TopicNodes(directory, state)
        views = PageViews(directory, state, poller, closeups)
        events = LiveEvents(views, state, poller)
        session = SessionEndpoint(options, self._users)
        metrics = self._metrics = AdminMetrics(state, events)
        routes = under(
            options.root,
            page_table(Pages(options.root, session.json, options.dev_static_dir)),
            nsq_table(
                NsqEndpoints(directory), NsqChangeEndpoints(changes, self._notifier), self._users
            ),
            view_table(session, views, events),
            metrics_table(metrics),
            message_table(MessageEndpoints(nodes), TailEndpoint(nodes)),
            act_table(
                ActionEndpoints(changes, nodes, self._notifier),
                DeadLetterEndpoints(nodes, self._notifier),
                TopicSettingsEndpoints(nodes, state, self._notifier),
                self._users,
            ),
            config_table(AdminConfigEndpoints(options), ConfigGuard(options)),
            graphite_table(
                GraphiteEndpoints(options, self._graphite), proxy=options.proxy_graphite
            ),
        )
        # Its pages change things. Where any name may be ours, any name is.
        hosts = None if self._any_host else own_hosts(*options.http_host)
        self._http = HttpServer(routes, own_hosts=hosts, any_host=self._any_host)
        self.http_port = (await self._listeners.prepare(LISTENER, self._http)).port
        await self._listeners.start()
        metrics.watch(self._http)
        poller.start()

    def reload(self) -> bool:
        """SIGHUP: read the access token again; one that cannot be read leaves the one before."""
        path = self.options.nsqd_token_file
        if not path or self._access is None:
            return False
        try:
            self._access.token = access_token(path)
        except StartupError as error:
            _LOG.error("%s", error)
        return True

    async def close(self) -> None:
        self._listeners.close()
        for work in (self._poller, self._closeups, self._metrics):
            if work is not None:
                work.close()
        if self._http is not None:
            await self._http.close()
        for each in (self._upstream, self._notifier, self._graphite):
            if each is not None:
                await each.close()

    def _asker(self, bytes_max: int, tls: ssl.SSLContext | None) -> Asker:
        return Asker(
            connect_timeout_ns=self.options.http_client_connect_timeout_ns,
            timeout_ns=self.options.http_client_request_timeout_ns,
            requests_max=OTHERS_REQUESTS_MAX,
            answer_bytes_max=bytes_max,
            tls=tls,
        )


def node_access(options: NsqadminOptions) -> NodeAccess:
    """How nsqds and nsqlookupds are asked; StartupError if a file cannot be used."""
    access = NodeAccess(
        timeout_s=options.http_client_request_timeout_ns / NS_PER_S or None,  # 0: no limit
        connect_timeout_s=options.http_client_connect_timeout_ns / NS_PER_S or None,
        names=NSQADMIN_NAMES,
        token=access_token(options.nsqd_token_file),
        tls_ca_file=options.http_client_tls_root_ca_file,
        tls_cert_file=options.http_client_tls_cert,
        tls_key_file=options.http_client_tls_key,
        tls_skip_verify=options.http_client_tls_insecure_skip_verify,
    )
    try:
        access.tls()
    except AccessError as error:
        raise _failed(f"failed to load the TLS files of --http-client-tls-… - {error}") from None
    return access


def access_token(path: str) -> str:
    """The first access token in a file; StartupError if there is none."""
    try:
        return token_in(path) if path else ""
    except (OSError, ValueError) as error:
        raise _failed(f"failed to read --nsqd-token-file ({path}) - {error}") from None


def _failed(cause: str) -> StartupError:
    return StartupError(f"failed to instantiate nsqadmin - {cause}")
