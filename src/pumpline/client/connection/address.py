"""Addresses of an nsqd as users write them: `host:port`, `[::1]:port`, or the path of a socket."""

Address = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""


def parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        if not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r}: there is no port {port}")
        return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
    if "/" in text:
        return text
    raise ValueError(f"{text!r} is no address: expected host:port, or the path of a unix socket")
