"""PageViews as server-sent events: the whole object first, then what changes in it.

The rows of a table stay those of the first answer, in their order, so that nothing moves under a
reader's eyes; a delta has the fields of a row that changed. A view is made anew when there is news,
and at most once a second for each browser. How many may listen is bounded.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from pumpline.nsqadmin.api.views import PageViews, Query, Shown, View
from pumpline.nsqadmin.live.poller import ClusterPoller
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.web.event_stream import EventStream
from pumpline.web.replies import HttpError, Reply, stream_reply
from pumpline.web.request import Request

STREAMS_MAX = 1000
EVENT_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy must not keep events back
    "X-Content-Type-Options": "nosniff",
}
ROWS = "rows"


class LiveEvents:
    def __init__(self, views: PageViews, state: ClusterState, poller: ClusterPoller) -> None:
        self._views = views
        self._state = state
        self._poller = poller
        self.streams = 0

    async def open(self, request: Request) -> Reply:
        query = dict(request.query())
        name = query.pop("view", "")
        view = self._views.by_name.get(name)
        if view is None:
            raise HttpError(400, "INVALID_VIEW")
        if self.streams >= STREAMS_MAX:
            raise HttpError(503, "TOO_MANY_STREAMS")
        self._poller.look()
        await self._poller.ready()
        first = await view(query)
        closeup = await self._views.closeup_of(name, query)
        told_by = self._state.listeners if closeup is None else closeup.listeners

        def close(stream: EventStream) -> None:
            told_by.discard(stream.wake)
            self.streams -= 1

        stream = EventStream(self._events(view, query, first), on_close=close)
        self.streams += 1
        told_by.add(stream.wake)
        return stream_reply(stream, EVENT_HEADERS)

    async def _events(self, view: View, query: Query, first: Shown) -> AsyncIterator[bytes]:
        shown = plain(first)
        yield event("full", shown)
        keys = [row["key"] for row in shown[ROWS]] if ROWS in shown else None
        while True:
            yield b""
            self._poller.look()
            try:
                fresh = plain(await view(query, keys))
            except HttpError as error:
                yield event("error", {"status": error.status, "message": error.code})
                return
            change = delta(keys or (), shown, fresh)
            shown = fresh
            if change is not None:
                yield event("delta", change)


def delta(keys: Sequence[str], old: Shown, new: Shown) -> Shown | None:
    """What is different; None if only the time is."""
    changed = {
        name: value
        for name, value in new.items()
        if name not in ("seq", "at_ms", ROWS) and old.get(name) != value
    }
    rows = {}
    for key, before, after in zip(keys, old.get(ROWS, ()), new.get(ROWS, ()), strict=True):
        if before != after:
            rows[key] = _fields(before, after)
    if not changed and not rows:
        return None
    told: Shown = {"seq": new.get("seq"), "at_ms": new.get("at_ms")}
    if changed:
        told["set"] = changed
    if rows:
        told[ROWS] = rows
    return told


def _fields(before: Mapping[str, Any] | None, after: Shown | None) -> Shown | None:
    """The fields that changed; all, of a row that is there again."""
    if before is None or after is None:
        return after
    return {name: value for name, value in after.items() if before.get(name) != value}


def plain(shown: Shown) -> Shown:
    """As JSON has it, so that two can be compared."""
    made: Shown = msgspec.to_builtins(shown)
    return made


def event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
