"""Telling an endpoint of every change, as NSQ's nsqadmin does. Nothing waits for it, and one that
fails costs a log line."""

import asyncio
import logging
import socket
import time

import msgspec

from pumpline.nsqadmin.access import AdminUsers
from pumpline.web.http_client import Asker, NoAnswer
from pumpline.web.request import Request

WAITING_MAX = 1000  # notifications; more are dropped, with a log line
ANSWER_BYTES_MAX = 1 << 20

_LOG = logging.getLogger(__name__)


class Notification(msgspec.Struct, kw_only=True, omit_defaults=True):
    action: str
    topic: str
    channel: str = ""
    node: str = ""
    client: str = ""
    timestamp: int
    user: str = ""
    remote_ip: str
    user_agent: str
    url: str
    via: str


class Notifier:
    def __init__(self, endpoint: str, users: AdminUsers, asker: Asker) -> None:
        """Without an `endpoint` nothing is told."""
        self._endpoint = endpoint
        self._users = users
        self._asker = asker
        self._waiting: asyncio.Queue[Notification] = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def tell(
        self,
        request: Request,
        action: str,
        *,
        topic: str,
        channel: str = "",
        node: str = "",
        client: str = "",
    ) -> None:
        if not self._endpoint:
            return
        told = Notification(
            action=action,
            topic=topic,
            channel=channel,
            node=node,
            client=client,
            timestamp=int(time.time()),
            user=self._users.name(request),
            remote_ip=request.client.address,
            user_agent=request.header("user-agent"),
            url=_url(request),
            via=socket.gethostname(),
        )
        try:
            self._waiting.put_nowait(told)
        except asyncio.QueueFull:
            _LOG.error("NOTIFY: %d wait already, dropped %s of %s", WAITING_MAX, action, topic)
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._asker.close()

    async def _send(self) -> None:
        while True:
            told = await self._waiting.get()
            try:
                status, _ = await self._asker.ask(self._endpoint, msgspec.json.encode(told))
                if status >= 300:
                    _LOG.error("NOTIFY: %s of %s: status %d", told.action, told.topic, status)
            except (NoAnswer, TimeoutError) as error:
                cause = str(error) or "no answer in time"
                _LOG.error("NOTIFY: %s of %s: %s", told.action, told.topic, cause)
            except Exception:
                _LOG.exception("NOTIFY: %s of %s", told.action, told.topic)


def _url(request: Request) -> str:
    scheme = "https" if request.header("x-scheme") == "https" else "http"
    return f"{scheme}://{request.header('host')}{request.head.target}"
