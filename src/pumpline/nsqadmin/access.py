"""Who asks, and what they may: users who may change things, and where /config may be used from.

A proxy says in a header who the user is; nsqadmin believes it, as NSQ's does. Knows requests; must
not know what they are for.
"""

from base64 import b64decode
from ipaddress import ip_address

from pumpline.core.text.addresses import split_address
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.web.replies import HttpError
from pumpline.web.request import Request


class AdminUsers:
    def __init__(self, options: NsqadminOptions) -> None:
        self._options = options

    @property
    def are_named(self) -> bool:
        """Whether only some may change things."""
        return bool(self._options.admin_user)

    def user(self, request: Request) -> str:
        """The user in the header, or empty."""
        return request.header(self._options.acl_http_header.lower())

    def name(self, request: Request) -> str:
        """What to call who asks: the user, or the name given by HTTP basic authentication."""
        return self.shown_user(request) or _basic_name(request.header("authorization"))

    def shown_user(self, request: Request) -> str:
        """The user as text, which a header need not be."""
        return self.user(request).encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def is_admin(self, request: Request) -> bool:
        return not self.are_named or self.user(request) in self._options.admin_user

    def check(self, request: Request) -> None:
        """403 if the user may change nothing."""
        if not self.is_admin(request):
            raise HttpError(403, "FORBIDDEN")


class ConfigGuard:
    """Where /config may be used from."""

    def __init__(self, options: NsqadminOptions) -> None:
        self._network = options.config_network()

    def check(self, request: Request) -> None:
        if self._network is None:
            return
        try:
            host, _ = split_address(request.client.address)
            address = ip_address(host.partition("%")[0])
        except ValueError:
            raise HttpError(400, f"INVALID_REMOTE_ADDR {request.client.address}") from None
        mapped = getattr(address, "ipv4_mapped", None)
        if (mapped or address) not in self._network:
            raise HttpError(403, "FORBIDDEN")


def _basic_name(authorization: str) -> str:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[0]
    except ValueError:
        return ""
