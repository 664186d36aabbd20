"""For which host names a server answers.

A browser lets a page read what the page's own host sends. The owner of a name can let it mean
127.0.0.1 once a page was loaded from it (DNS rebinding): the page then reads from a server on the
machine of whoever looks at it. The request tells, by its `Host`:

| the server                              | answers requests whose `Host` is                       |
|-----------------------------------------|--------------------------------------------------------|
| listens on loopback addresses only, or  | an IP address, a loopback name, the host name, the     |
| was told its host names (`--http-host`) | broadcast address, or a name that it was told          |
| listens on other addresses, too         | any: proxies and DNS may have any name for it          |
| listens on a unix socket                | any: no browser gets there                             |

A request without a host comes from no browser, and is answered. An IP address passes because a page
that has an address for its host was loaded from there.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address

from pumpline.core.text.addresses import bare_host, is_loopback
from pumpline.web.head import Head
from pumpline.web.replies import Reply, error_reply
from pumpline.web.request import printable
from pumpline.web.sockets import ListeningSocket

HOST_CHARS_MAX = 255  # of a name, in a refusal

_LOCALHOST = "localhost"
_HOSTS_FILE = "/etc/hosts"


class OwnHosts:
    """The names of a server, and any IP address."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(bare_host(name) for name in names if name)

    def has(self, host: str) -> bool:
        """`host` is the value of a Host header, maybe with a port."""
        name = bare_host(host)
        if name == _LOCALHOST or name.endswith("." + _LOCALHOST) or name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def own_hosts(*told: str) -> OwnHosts:
    """The names that this machine has, and those that a daemon was told."""
    return OwnHosts([socket.gethostname(), *loopback_names(), *told])


def loopback_names(path: str = _HOSTS_FILE) -> list[str]:
    """The names that the machine's owner gave to loopback addresses."""
    names: list[str] = []
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            address, *rest = line.partition("#")[0].split() or [""]
            with suppress(ValueError):
                if is_loopback(address):
                    names += rest
    return names


def answers_any_host(bound: ListeningSocket, told: Iterable[str]) -> bool:
    """Whether a server at this address answers for all names; `told` are those of `--http-host`."""
    return bound.is_unix or not (bound.is_loopback or any(told))


def unknown_host_reply(head: Head, own: OwnHosts) -> Reply | None:
    """The refusal of a request for a host that is not ours."""
    for host in head.values("host"):
        if host and not own.has(host):
            name = printable(bare_host(host))[:HOST_CHARS_MAX]
            detail = (
                f"requests for the host name {name} are not answered: "
                f"if it is a name of this server, start it with --http-host={name}"
            )
            return error_reply(403, "UNKNOWN_HOST", details={"detail": detail})
    return None
