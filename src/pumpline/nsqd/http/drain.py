"""Whether to send clients here, and to stop doing so: GET /ready and POST /drain.

NSQ has no way to stop it from afar, and a drop-in must not open one. So without access tokens and
certificates only a program on this machine may drain, which asks us directly and under a host of
ours. The address of the socket is not enough: it is that of a proxy, or of a browser.
"""

from pumpline.core.text.durations import format_duration, parse_duration
from pumpline.nsqd.broker import Broker
from pumpline.web.hosts import OwnHosts
from pumpline.web.replies import HttpError, Reply, json_reply, plain_reply
from pumpline.web.request import Request

_OF_PROXIES = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via")


class DrainEndpoints:
    def __init__(self, broker: Broker, *, guarded: bool, own_hosts: OwnHosts) -> None:
        """`guarded`: whoever may not drain does not come here."""
        self._broker = broker
        self._guarded = guarded
        self._own_hosts = own_hosts

    def ready(self, request: Request) -> Reply:
        fault = self._broker.unready()
        return plain_reply(
            "OK" if fault is None else f"NOK - {fault}", status=503 if fault else 200
        )

    def drain(self, request: Request) -> Reply:
        if not self._guarded and not self._is_from_here(request):
            raise HttpError(403, "FORBIDDEN")
        draining = self._broker.draining
        text = request.query().get("timeout")
        if text is not None:
            try:
                timeout_ns = parse_duration(text)
            except ValueError:
                timeout_ns = -1
            if timeout_ns < 0:
                raise HttpError(400, "INVALID_TIMEOUT")
            draining.timeout_ns = timeout_ns
        draining.begin()
        draining.wanted.set()
        shown = format_duration(draining.timeout_ns)
        return json_reply({"in_flight": draining.in_flight, "timeout": shown})

    def _is_from_here(self, request: Request) -> bool:
        if not request.client.is_local or any(request.headers(name) for name in _OF_PROXIES):
            return False
        return all(self._own_hosts.has(host) for host in request.headers("Host"))
