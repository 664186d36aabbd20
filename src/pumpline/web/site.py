"""What a server answers: which endpoint a request is for, whether it may have it, and what comes of
it, in the log and in the figures.

Anything but `HttpError` that a handler raises is a 500 and a log line. Knows routes, requests and
replies; must not know connections.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from pumpline.core.text.durations import format_duration
from pumpline.web.batched_log import LogSoon
from pumpline.web.endpoint import (
    Access,
    AccessGrant,
    Answer,
    BodyLimit,
    Endpoint,
    Handler,
    RequestGate,
    Settling,
    Work,
)
from pumpline.web.head import Head, parse_head
from pumpline.web.hosts import OwnHosts, unknown_host_reply
from pumpline.web.origins import is_foreign
from pumpline.web.query import QueryError, unescape
from pumpline.web.replies import HttpError, Reply, error_reply, redirect_reply
from pumpline.web.request import Request, printable
from pumpline.web.routes import OPTIONS, Allowed, Found, Redirect, Routes

_ALWAYS_LOGGED = (401, 403)  # somebody tries what they may not
_PLANS_MAX = 1024
_KEPT_BYTES = 512  # of a head: that of a longer one is not kept

_LOG = logging.getLogger(__name__)


OPEN = AccessGrant()  # to all
UNCHECKED = AccessGrant(revoked=True)


class RequestPlan(msgspec.Struct):
    """What becomes of requests with a head."""

    head: Head
    endpoint: Endpoint | None
    variable: str = ""
    reply: Reply | None = None  # where there is no endpoint
    quiet: bool = False  # requests are not logged
    clearance: AccessGrant = UNCHECKED  # until it is revoked, `Site.check` would refuse none
    takes_body: bool = False  # of the length that is announced
    grant: AccessGrant | None = None  # from the gate, once it was asked
    handler: Handler | None = None  # once there was a request to answer

    @property
    def body_limit(self) -> BodyLimit | None:
        return None if self.endpoint is None else self.endpoint.body


class Site:
    def __init__(
        self,
        routes: Routes[Endpoint],
        *,
        gate: RequestGate | None = None,
        refusal: Callable[[], Reply] | None = None,
        own_hosts: OwnHosts | None = None,
        any_host: bool = True,
    ) -> None:
        """Without a `gate` anybody may do anything, but for other people's web pages (see
        `web.origins`). `refusal`, if given, answers everything. Without `any_host`, only requests
        for one of `own_hosts` are answered (see `web.hosts`)."""
        self.replies: Counter[int] = Counter()  # sent, by status
        self._routes = routes
        self._gate = gate
        self._refuse = None if refusal is None else Endpoint(lambda _: refusal())
        self._own_hosts = own_hosts
        self._only_hosts = None if any_host else own_hosts
        self._log_soon = LogSoon(_LOG)
        self._plans: dict[bytes, RequestPlan] = {}  # of heads that may well come again

    def plan_of(self, raw: bytes) -> RequestPlan:
        """What becomes of requests with the head `raw`; BadRequest if that is none.

        Clients that publish send the same few heads again and again, one for each topic.
        """
        plan = self._plans.get(raw)
        if plan is None:
            plan = self.plan(parse_head(raw))
            is_bound = plan.endpoint is not None and plan.endpoint.bind is not None
            if is_bound and plan.clearance is OPEN and len(raw) <= _KEPT_BYTES:
                if len(self._plans) >= _PLANS_MAX:
                    self._plans.clear()
                self._plans[raw] = plan
        return plan

    def plan(self, head: Head) -> RequestPlan:
        if self._refuse is not None:
            return RequestPlan(head, self._refuse, quiet=True)
        if self._only_hosts is not None:
            refused = unknown_host_reply(head, self._only_hosts)
            if refused is not None:
                return RequestPlan(head, None, reply=refused)
        if head.method == OPTIONS and head.target == "*":
            return RequestPlan(head, None, reply=Reply())
        if not head.expectation_is_met:
            return RequestPlan(head, None, reply=error_reply(417, "EXPECTATION_FAILED"))
        try:
            found = self._routes.resolve(head.method, unescape(head.path))
        except QueryError:
            return RequestPlan(head, None, reply=error_reply(400, "INVALID_REQUEST"))
        if isinstance(found, Found):
            endpoint = found.target
            if _changes(endpoint, head.method) and is_foreign(head, self._own_hosts):
                return RequestPlan(head, None, reply=error_reply(403, "FOREIGN_ORIGIN"))
            limit = endpoint.body
            too_big = limit is not None and head.body_bytes > limit.bytes_max
            is_open = self._gate is None and endpoint.check is None and not too_big
            return RequestPlan(
                head,
                endpoint,
                found.variable,
                quiet=endpoint.quiet,
                clearance=OPEN if is_open else UNCHECKED,
                takes_body=limit is not None and not too_big,
            )
        return RequestPlan(head, None, reply=_unfound(head, found))

    def check(self, plan: RequestPlan, request: Request) -> Reply | None:
        """Called before the body is there; returns the reply if the request is refused."""
        endpoint = plan.endpoint
        if endpoint is None or endpoint is self._refuse:
            return plan.reply
        try:
            if self._gate is not None and (plan.grant is None or plan.grant.revoked):
                plan.grant = self._gate(request, endpoint.access_by(request.method))
            limit = endpoint.body
            if limit is not None and request.head.body_bytes > limit.bytes_max:
                raise HttpError(413, limit.too_big)
            if endpoint.check is not None:
                endpoint.check(request)
            elif plan.grant is not None:
                plan.clearance = plan.grant
        except Exception as error:
            return self._failure(request, error)
        return None

    def answer(self, plan: RequestPlan, request: Request) -> Answer:
        """Of a request that is whole, and was not refused."""
        try:
            if plan.handler is None:
                assert plan.endpoint is not None
                bind = plan.endpoint.bind
                plan.handler = plan.endpoint.handler if bind is None else bind(request)
            return plan.handler(request)
        except Exception as error:
            return self._failure(request, error)

    async def work(self, request: Request, answer: Work) -> Reply | Settling:
        try:
            return await answer
        except Exception as error:
            return self._failure(request, error)

    def note(self, plan: RequestPlan, request: Request, reply: Reply, started_ns: int) -> None:
        """The reply is about to be sent."""
        self.replies[reply.status] += 1
        quiet = plan.quiet and reply.status not in _ALWAYS_LOGGED
        if not quiet and self._log_soon.enabled:
            elapsed = format_duration(time.monotonic_ns() - started_ns)
            shown, peer = printable(request.head.target), request.client.address
            self._log_soon.add(f"{reply.status} {request.method} {shown} ({peer}) {elapsed}")

    def close(self) -> None:
        self._log_soon.flush()

    def _failure(self, request: Request, error: Exception) -> Reply:
        if isinstance(error, HttpError):
            return error.reply()
        if isinstance(error, QueryError):
            return error_reply(400, "INVALID_REQUEST")
        shown = printable(request.path)
        _LOG.error("panic in HTTP handler - %s %s", request.method, shown, exc_info=error)
        return error_reply(500, "INTERNAL_ERROR")


def _changes(endpoint: Endpoint, method: str) -> bool:
    return method != "GET" or endpoint.access is Access.MUTATE


def _unfound(head: Head, found: Redirect | Allowed | None) -> Reply:
    if found is None:
        return error_reply(404, "NOT_FOUND")
    if isinstance(found, Redirect):
        location = quote(found.path, errors="surrogateescape")
        if head.raw_query:
            location += "?" + printable(head.raw_query)
        return redirect_reply(head.method, location)
    allow = {"Allow": ", ".join(found.methods)}
    if head.method == OPTIONS:
        return Reply(headers=allow)
    return error_reply(405, "METHOD_NOT_ALLOWED", headers=allow)
