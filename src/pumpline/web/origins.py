"""Whether a request was made by somebody else's web page.

A browser sends what any page asks for to any address that it can reach, 127.0.0.1 too. It does not
show the page the reply, but a request that changes something has then done so. What browsers say of
themselves decides, in the order of Go's `http.CrossOriginProtection`:

| header           | value                                              | the page is          |
|------------------|----------------------------------------------------|----------------------|
| `Sec-Fetch-Site` | `same-origin`                                      | ours                 |
|                  | `none` (no page asked, the user did), or absent    | for `Origin` to tell |
|                  | `cross-site`, `same-site` (another port), any else | somebody else's      |
| `Origin`         | a scheme and the value of `Host`, a host of ours   | ours                 |
|                  | absent                                             | none: a client asks  |
|                  | `null`, any else                                   | somebody else's      |

`Host` alone proves nothing, because of DNS rebinding (see `web.hosts`): both headers then have the
attacker's name.

Pure: knows heads, and nothing of connections and routes.
"""

from pumpline.web.head import Head
from pumpline.web.hosts import OwnHosts

_ALWAYS_OURS = "same-origin"
_NO_PAGE = "none"


def is_foreign(head: Head, own_hosts: OwnHosts | None) -> bool:
    """Whether somebody else's page asks. `own_hosts`: None for a server with pages of its own, that
    may have any name."""
    sites, origins = head.values("sec-fetch-site"), head.values("origin")
    if not sites and not origins:
        return False
    if sites and all(site == _ALWAYS_OURS for site in sites):
        return False
    if any(site != _NO_PAGE for site in sites):
        return True
    hosts = [host.lower() for host in head.values("host")]
    return any(
        [_authority(origin)] != hosts or not (own_hosts is None or own_hosts.has(hosts[0]))
        for origin in origins
    )


def _authority(origin: str) -> str:
    """Host and port of `<scheme>://<host>[:<port>]`; empty if it is none."""
    return origin.partition("://")[2].lower()
