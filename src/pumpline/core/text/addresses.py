"""`<host>:<port>`, read and written; a host with colons in it stands in brackets."""

from ipaddress import IPv6Address, ip_address

PORT_MAX = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port; ValueError if it is none. The host may be empty, the port 0."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError("not an <addr>:<port>")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_path(address: str) -> bool:
    """Whether a listen address is the path of a unix socket: whatever does not end in a port."""
    return not address.rpartition(":")[2].isdigit() or ":" not in address


def join_address(name: object) -> str:
    """A socket's name in one word: empty if it has none, a unix socket's path."""
    if not isinstance(name, tuple):
        return name if isinstance(name, str) else ""
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bare_host(host: str) -> str:
    """The name or address in `<host>[:<port>]`, in lower case, without brackets and a final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; of a socket, so never a name."""
    address = ip_address(host.partition("%")[0])
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (inner or address).is_loopback
