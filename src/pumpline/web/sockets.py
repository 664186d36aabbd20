"""The sockets a daemon listens on, bound before anything else is loaded.

From then on the kernel takes connections, which wait until the daemon serves them; Go's nsqd too
binds its addresses before it reads its data. Small on purpose: it imports neither asyncio nor ssl,
whose import takes longer than all this. Knows nothing of what is served.
"""

import errno
import os
import socket
import stat
from collections.abc import Mapping

from pumpline.core.text.addresses import is_loopback, is_path, join_address, split_address

BACKLOG = 1024
UNIX_SOCKET = -1  # in place of a port


class StartupError(Exception):
    """A daemon cannot begin; the text is that of the FATAL log line."""


class ListeningSocket:
    """All sockets of one address: a host name may stand for several, with one port."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        bound = sockets[0].getsockname()
        self.host: str = bound if isinstance(bound, str) else bound[0]
        """The path, of a unix socket."""
        self.port: int = UNIX_SOCKET if isinstance(bound, str) else bound[1]
        self.shown = join_address(bound)
        self._hosts = [] if self.is_unix else [each.getsockname()[0] for each in sockets]

    @property
    def is_unix(self) -> bool:
        return self.port == UNIX_SOCKET

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect, by TCP."""
        return not self.is_unix and all(is_loopback(host) for host in self._hosts)

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class ListeningSockets:
    """The addresses of a daemon by their names, as `TCP` and `HTTP`: all bound, or none."""

    def __init__(
        self, program: str, addresses: Mapping[str, str], *, unix_allowed: bool = False
    ) -> None:
        self.by_name: dict[str, ListeningSocket] = {}
        try:
            for name, address in addresses.items():
                self.by_name[name] = _listen(program, address, unix_allowed=unix_allowed)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in self.by_name.values():
            each.close()


def _listen(program: str, address: str, *, unix_allowed: bool) -> ListeningSocket:
    try:
        if unix_allowed and is_path(address):
            return ListeningSocket([_unix_socket(address)])
        return ListeningSocket(_inet_sockets(address))
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise StartupError(
            f"failed to instantiate {program} - listen ({address}) failed - {reason}"
        ) from error


def _inet_sockets(address: str) -> list[socket.socket]:
    host, port = split_address(address)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, (ip, _, *scope) in dict.fromkeys(found):
            # With port 0, the first socket has chosen one for all.
            name = (ip, sockets[0].getsockname()[1] if sockets else port, *scope)
            try:
                made = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # this machine resolves the family, but has it turned off
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(name)
            made.listen(BACKLOG)
        if not sockets:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


def _unix_socket(path: str) -> socket.socket:
    """A unix socket left by a process that is gone is replaced; that of one that lives is not."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            abandoned = probe.connect_ex(path) == errno.ECONNREFUSED
        # Any other file refuses connections, too, and stays.
        if abandoned and stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
        made.bind(path)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
