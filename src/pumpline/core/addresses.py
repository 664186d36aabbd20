"""`<host>:<port>`, read and written; a host with colons in it stands in brackets."""

PORT_MAX = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port; ValueError if it is none. The host may be empty, the port 0."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError("not an <addr>:<port>")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(name: object) -> str:
    """A socket's name in one word; empty if it has none, or is a unix socket."""
    if not isinstance(name, tuple):
        return ""
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
