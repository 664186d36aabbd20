"""Listen addresses: `host:port`, or the path of a unix socket for anything else."""

from ipaddress import ip_address


def listen_address(text: str) -> tuple[str, int] | str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        return text
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; of a socket, so never a name."""
    return ip_address(host.partition("%")[0]).is_loopback
