"""What a client may do after AUTH: what the auth servers are asked, and what they granted.

Who asks them is in `auth_servers`, which needs an HTTP client and is imported only with
--auth-http-address.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pumpline.core.protocol.permissions import Grant

Answered = Callable[[Grant | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthQuestion:
    """What the auth servers are told about a client."""

    secret: bytes = field(repr=False)
    remote_ip: str  # empty on a unix socket
    tls: bool
    common_name: str  # of its certificate

    def fields(self) -> dict[str, bytes]:
        """By name, in the order of names."""
        return {
            "common_name": self.common_name.encode("utf-8", "surrogateescape"),
            "remote_ip": self.remote_ip.encode(),
            "secret": self.secret,
            "tls": b"true" if self.tls else b"false",
        }


@dataclass(slots=True)
class ClientAccess:
    """What a client has been granted."""

    secret: bytes = field(default=b"", repr=False)
    grant: Grant | None = None
    expired: bool = False  # the servers must be asked again


class Authorities(Protocol):
    """Who decides what clients may do."""

    def ask(self, question: AuthQuestion, peer: str, answered: Answered) -> Callable[[], object]:
        """Call `answered` with what is granted, or None; returns what calls that off."""

    async def close(self) -> None: ...


def auth_response(grant: Grant) -> bytes:
    """The JSON that a client gets; Go escapes what might be taken for HTML."""
    data = msgspec.json.encode(
        {
            "identity": grant.identity,
            "identity_url": grant.identity_url,
            "permission_count": len(grant.rows),
        }
    )
    for char in b"<>&":
        data = data.replace(bytes([char]), b"\\u%04x" % char)
    return data
