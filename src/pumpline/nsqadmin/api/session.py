"""Who asks, and what nsqadmin was told: what the page must know before anything else."""

import time

import msgspec

from pumpline import NSQ_VERSION, __version__
from pumpline.nsqadmin.access import AdminUsers
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.web.replies import Reply, json_reply
from pumpline.web.request import Request


class SessionEndpoint:
    def __init__(self, options: NsqadminOptions, users: AdminUsers) -> None:
        self._options = options
        self._users = users
        self._started_at_ms = int(time.time() * 1000)

    def get(self, request: Request) -> Reply:
        return json_reply(self._told(request))

    def json(self, request: Request) -> bytes:
        """The same, for the page itself."""
        return msgspec.json.encode(self._told(request))

    def _told(self, request: Request) -> dict[str, object]:
        options = self._options
        return {
            "version": NSQ_VERSION,
            "pumpline": __version__,
            "base_path": options.base_path,
            "user": self._users.shown_user(request),
            "is_admin": self._users.is_admin(request),
            "admin_users": self._users.are_named,
            "mode": "lookupd" if options.lookupd_http_address else "nsqd",
            "lookupds": options.lookupd_http_address,
            "graphite_url": options.graphite_url,
            "started_at_ms": self._started_at_ms,
        }
