"""Addresses as users write them: `host:port`, `[::1]:port`, or the path of a socket."""

from collections.abc import Iterable

Address = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""


def parse_address(text: str) -> Address:
    scheme, is_url, _ = text.partition("://")
    if is_url:
        raise ValueError(f"{text!r} is a URL: expected host:port, without {scheme}://")
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        if not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r}: there is no port {port}")
        return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
    if "/" in text:
        return text
    raise ValueError(f"{text!r} is no address: expected host:port, or the path of a unix socket")


def list_of_addresses(given: str | Iterable[str]) -> list[str]:
    """One or several; TypeError if any is no text."""
    one_or_several: object = given
    if isinstance(one_or_several, str) or not isinstance(one_or_several, Iterable):
        listed: list[object] = [one_or_several]
    elif isinstance(one_or_several, bytes | bytearray):
        listed = [one_or_several]
    else:
        listed = list(one_or_several)
    for each in listed:
        if not isinstance(each, str):
            kind = type(each).__name__
            raise TypeError(f"an address is text such as '127.0.0.1:4150', not {kind}")
    return [str(each) for each in listed]
