"""Connections within one machine: they are sent to without pacing.

Where bbr is the system's congestion control, it spreads what is sent over time, by timers. Between
two processes of one machine that only costs: two thirds of the CPU of a range of files, and an
eighth of a large message's delivery. Connections to other machines stay as the system has them.
"""

import socket
from contextlib import suppress
from ipaddress import ip_address

_MAPPED = "::ffff:"  # an IPv4 address on a socket that takes both kinds
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 0)  # Linux has it
_UNPACED = b"reno"


def unpace(fd: int, host: str) -> None:
    """Do not pace what is sent on the TCP socket `fd`, if `host`, at its other end, is this
    machine."""
    with suppress(OSError, ValueError):  # another kind of address, or a kernel without reno
        if _TCP_CONGESTION and ip_address(host.removeprefix(_MAPPED)).is_loopback:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # With all three given, nothing is asked of the kernel; the descriptor stays open.
            borrowed = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)
            try:
                borrowed.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _UNPACED)
            finally:
                borrowed.detach()
