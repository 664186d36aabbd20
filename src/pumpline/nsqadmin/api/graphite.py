"""Graphite: the rate of a target as text, and its pictures passed on (`--proxy-graphite`)."""

import logging
from typing import Any
from urllib.parse import urlencode

import msgspec

from pumpline.core.text.durations import NS_PER_S
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.web.http_client import Asker, NoAnswer
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

_LOG = logging.getLogger(__name__)


class GraphiteTarget(msgspec.Struct):
    target: str
    datapoints: list[list[float | None]]


class GraphiteEndpoints:
    def __init__(self, options: NsqadminOptions, asker: Asker) -> None:
        self._options = options
        self._asker = asker

    async def rate(self, request: Request) -> Reply:
        query = request.query()
        if query.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        if "target" not in query:
            raise HttpError(400, "INVALID_ARG_TARGET")
        interval_s = self._options.statsd_interval_ns // NS_PER_S
        asked = {
            "format": "json",
            "from": f"-{2 * interval_s}sec",
            "target": query["target"],
            "until": f"-{interval_s}sec",
        }
        try:
            answer = await self._ask(f"/render?{urlencode(asked)}")
            targets = msgspec.json.decode(answer, type=list[GraphiteTarget])
            rate = targets[0].datapoints[0][0]
        except (NoAnswer, TimeoutError, msgspec.MsgspecError, IndexError) as error:
            _LOG.error("failed to request the rate of %s - %s", asked["target"], error)
            raise HttpError(500, "INTERNAL_ERROR") from None
        if rate is None or rate < 0:
            return json_reply({"rate": "N/A"})
        return json_reply({"rate": f"{rate / max(interval_s, 1):.2f}"})

    async def render(self, request: Request) -> Reply:
        """What Graphite answers, with its status."""
        url = f"{self._options.graphite_url.rstrip('/')}/render?{request.head.raw_query}"
        try:
            status, body = await self._asker.ask(url)
        except (NoAnswer, TimeoutError) as error:
            raise HttpError(502, f"UPSTREAM_ERROR: {error or 'no answer in time'}") from None
        return Reply(status=status, body=body, headers=_picture_headers(body))

    async def _ask(self, target: str) -> bytes:
        status, body = await self._asker.ask(self._options.graphite_url.rstrip("/") + target)
        if status != 200:
            raise NoAnswer(f"status {status}")
        return body


def _picture_headers(body: bytes) -> dict[str, Any]:
    """By what it is, so that nothing of Graphite's is ever a page of ours."""
    kinds = {b"\x89PNG": "image/png", b"[": "application/json", b"%PDF": "application/pdf"}
    for start, kind in kinds.items():
        if body.startswith(start):
            return {"Content-Type": kind, "X-Content-Type-Options": "nosniff"}
    return {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
