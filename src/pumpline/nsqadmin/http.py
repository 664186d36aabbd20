"""nsqadmin's routes, all under its base path: pages, NSQ's API, and the page's own.

Replies with data are compressed for who takes that, and are never taken for anything else by a
browser. Joins the endpoints; knows nothing of what they do.
"""

import zlib
from collections.abc import Coroutine, Mapping
from typing import Any

from pumpline.nsqadmin.access import AdminUsers, ConfigGuard
from pumpline.nsqadmin.api.actions import ActionEndpoints
from pumpline.nsqadmin.api.bodies import JSON_BODY
from pumpline.nsqadmin.api.config import VALUE_BODY, AdminConfigEndpoints
from pumpline.nsqadmin.api.dead_letters import DeadLetterEndpoints
from pumpline.nsqadmin.api.events import LiveEvents
from pumpline.nsqadmin.api.graphite import GraphiteEndpoints
from pumpline.nsqadmin.api.messages import MessageEndpoints
from pumpline.nsqadmin.api.nsq import NsqEndpoints
from pumpline.nsqadmin.api.nsq_changes import NsqChangeEndpoints
from pumpline.nsqadmin.api.session import SessionEndpoint
from pumpline.nsqadmin.api.settings import TopicSettingsEndpoints
from pumpline.nsqadmin.api.tail import TailEndpoint
from pumpline.nsqadmin.api.views import PageViews
from pumpline.nsqadmin.metrics import AdminMetrics
from pumpline.nsqadmin.pages import SMALL_BYTES, Pages, takes_gzip
from pumpline.web.endpoint import Answer, Endpoint, Handler, Settling
from pumpline.web.replies import Reply, plain_reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes

GZIP_LEVEL = 4  # of figures: 5 gives 3 % less for a third more time
GZIP_WINDOW = zlib.MAX_WBITS | 16  # with gzip's head
PAGE_API = "/api/v1"
PAGE_PATHS = (
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/nodes",
    "/nodes/:node",
    "/counter",
    "/lookup",
)

Table = dict[tuple[str, str], Endpoint]


def nsq_table(reads: NsqEndpoints, changes: NsqChangeEndpoints, users: AdminUsers) -> Table:
    """NSQ's API."""
    gets: Mapping[str, Handler] = {
        "/api/topics": reads.topics,
        "/api/topics/:topic": reads.topic,
        "/api/topics/:topic/:channel": reads.channel,
        "/api/nodes": reads.nodes,
        "/api/nodes/:node": reads.node,
        "/api/counter": reads.counter,
    }
    writes: Mapping[tuple[str, str], Handler] = {
        ("POST", "/api/topics"): changes.create,
        ("POST", "/api/topics/:topic"): changes.act_on_topic,
        ("POST", "/api/topics/:topic/:channel"): changes.act_on_channel,
        ("DELETE", "/api/topics/:topic"): changes.delete_topic,
        ("DELETE", "/api/topics/:topic/:channel"): changes.delete_channel,
        ("DELETE", "/api/nodes/:node"): changes.tombstone,
    }
    return {**read_table(gets), **write_table(writes, users)}


def view_table(session: SessionEndpoint, views: PageViews, events: LiveEvents) -> Table:
    """What the page looks at."""
    gets = {f"{PAGE_API}/{name}": views.handler(view) for name, view in views.by_name.items()}
    gets[f"{PAGE_API}/history"] = views.handler(views.history)
    gets[f"{PAGE_API}/session"] = session.get
    table = read_table(gets, quiet=True)
    table["GET", f"{PAGE_API}/events"] = Endpoint(events.open)
    return table


def message_table(messages: MessageEndpoints, tail: TailEndpoint) -> Table:
    table = read_table({f"{PAGE_API}/messages": messages.page, f"{PAGE_API}/message": messages.one})
    table["GET", f"{PAGE_API}/body"] = Endpoint(messages.body)
    table["GET", f"{PAGE_API}/tail"] = Endpoint(tail.open)
    return table


def act_table(
    actions: ActionEndpoints,
    letters: DeadLetterEndpoints,
    settings: TopicSettingsEndpoints,
    users: AdminUsers,
) -> Table:
    """What the page changes, and what it must know for that."""
    gets: Mapping[str, Handler] = {
        f"{PAGE_API}/dead-letters": letters.get,
        f"{PAGE_API}/holds": settings.holds,
        f"{PAGE_API}/settings": settings.get,
    }
    writes: Mapping[tuple[str, str], Handler] = {
        ("POST", f"{PAGE_API}/actions"): actions.act,
        ("POST", f"{PAGE_API}/rewind"): actions.rewind,
        ("POST", f"{PAGE_API}/dead-letters"): letters.publish,
        ("POST", f"{PAGE_API}/settings"): settings.change,
    }
    return {**read_table(gets), **write_table(writes, users)}


def read_table(gets: Mapping[str, Handler], *, quiet: bool = False) -> Table:
    """`quiet`: asked so often that nobody wants to read of it."""
    return {("GET", path): Endpoint(data(handler), quiet=quiet) for path, handler in gets.items()}


def write_table(writes: Mapping[tuple[str, str], Handler], users: AdminUsers) -> Table:
    """For admins alone."""
    return {
        route: Endpoint(data(handler), body=JSON_BODY, check=users.check)
        for route, handler in writes.items()
    }


def page_table(pages: Pages) -> Table:
    table = {("GET", path): Endpoint(pages.page) for path in PAGE_PATHS}
    table["GET", "/static/:asset"] = table["GET", "/fonts/:asset"] = Endpoint(pages.asset)
    table["GET", "/ping"] = Endpoint(lambda _: plain_reply("OK"))
    return table


def metrics_table(metrics: AdminMetrics) -> Table:
    return {("GET", "/metrics"): Endpoint(metrics.get, quiet=True)}


def config_table(config: AdminConfigEndpoints, guard: ConfigGuard) -> Table:
    return {
        ("GET", "/config/:opt"): Endpoint(config.get, check=guard.check),
        ("PUT", "/config/:opt"): Endpoint(config.put, body=VALUE_BODY, check=guard.check),
    }


def graphite_table(graphite: GraphiteEndpoints, *, proxy: bool) -> Table:
    table = {("GET", "/api/graphite"): Endpoint(graphite.rate)}
    if proxy:
        table["GET", "/render"] = Endpoint(graphite.render)
    return table


def under(root: str, *tables: Table) -> Routes[Endpoint]:
    """All of them below a base path, which is itself the first page."""
    return Routes(
        {
            (method, root if root and path == "/" else root + path): endpoint
            for table in tables
            for (method, path), endpoint in table.items()
        }
    )


def data(handler: Handler) -> Handler:
    """The handler, with replies as data should be sent."""

    def handle(request: Request) -> Answer:
        answer = handler(request)
        if isinstance(answer, Reply):
            return as_data(request, answer)
        return answer if isinstance(answer, Settling) else wait(request, answer)

    async def wait(
        request: Request,
        work: Coroutine[Any, Any, Reply] | Coroutine[Any, Any, Reply | Settling],
    ) -> Reply | Settling:
        reply = await work
        return as_data(request, reply) if isinstance(reply, Reply) else reply

    return handle


def as_data(request: Request, reply: Reply) -> Reply:
    headers = {**reply.headers, "X-Content-Type-Options": "nosniff"}
    headers.setdefault("Cache-Control", "no-store")
    body = reply.body
    if reply.stream is None and len(body) > SMALL_BYTES:
        headers["Vary"] = "Accept-Encoding"
        if takes_gzip(request):
            body = zlib.compress(body, GZIP_LEVEL, GZIP_WINDOW)
            headers["Content-Encoding"] = "gzip"
    return Reply(status=reply.status, body=body, headers=headers, stream=reply.stream)
