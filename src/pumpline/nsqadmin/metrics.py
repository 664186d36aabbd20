"""GET /metrics: what nsqadmin says of itself and of the cluster as it sees it.

Figures of topics and channels are each nsqd's own /metrics; nsqadmin does not repeat them.
"""

import asyncio

from pumpline.nsqadmin.api.events import LiveEvents
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.web.process_metrics import LoopDelay, add_build, add_http, add_process
from pumpline.web.prometheus_text import GAUGE, Exposition, Family
from pumpline.web.replies import Reply
from pumpline.web.request import Request
from pumpline.web.server import HttpServer

NODES = Family("nsqadmin_nodes", GAUGE, "Nodes of the cluster.")
SILENT_NODES = Family("nsqadmin_silent_nodes", GAUGE, "Those that do not answer.")
SILENT_LOOKUPDS = Family("nsqadmin_silent_lookupds", GAUGE, "nsqlookupds that do not answer.")
TOPICS = Family("nsqadmin_topics", GAUGE, "Topics of the cluster.")
TROUBLES = Family("nsqadmin_troubles", GAUGE, "What the page says needs a look.")
OPEN_PAGES = Family("nsqadmin_open_pages", GAUGE, "Pages that get live figures.")
FAMILIES = tuple(each for each in tuple(globals().values()) if isinstance(each, Family))


class AdminMetrics:
    def __init__(self, state: ClusterState, events: LiveEvents) -> None:
        self._state = state
        self._events = events
        self._delay = LoopDelay()
        self._http: list[HttpServer] = []

    def watch(self, http: HttpServer) -> None:
        """`http`: the server whose clients count."""
        self._http = [http]
        self._delay.start(asyncio.get_running_loop())

    def close(self) -> None:
        self._delay.close()

    async def get(self, request: Request) -> Reply:
        state = self._state
        exposition = Exposition()
        add_build(exposition, "nsqadmin", asyncio.get_running_loop())
        exposition.add(NODES, len(state.nodes))
        exposition.add(SILENT_NODES, state.total.silent)
        exposition.add(SILENT_LOOKUPDS, sum(not each.ok for each in state.lookupds.values()))
        exposition.add(TOPICS, len(state.topics))
        exposition.add(TROUBLES, len(state.troubles))
        exposition.add(OPEN_PAGES, self._events.streams)
        add_http(exposition, "nsqadmin", self._http)
        self._delay.add_to(exposition, "nsqadmin")
        add_process(exposition)
        return await exposition.reply(request.header("Accept"))
