"""The replies of nsqlookupd: which nsqds it knows, and where each is asked."""

import msgspec

from pumpline.cluster.node import is_address


class RegisteredNode(msgspec.Struct, kw_only=True):
    """An nsqd in /nodes and /lookup of an nsqlookupd, or in its own /info."""

    remote_address: str = ""
    hostname: str = ""
    broadcast_address: str
    tcp_port: int = 0
    http_port: int
    version: str = ""
    topics: list[str] | None = None
    tombstones: list[bool] | None = None

    @property
    def address(self) -> str:
        """Where it is asked. Only what `is_host_and_port` accepts may become part of a URL."""
        return host_and_port(self.broadcast_address, self.http_port)

    @property
    def tcp_address(self) -> str:
        return host_and_port(self.broadcast_address, self.tcp_port)

    def hidden(self) -> list[str]:
        """Topics that are tombstoned: consumers are not sent to it for them."""
        pairs = zip(self.topics or (), self.tombstones or (), strict=False)
        return [topic for topic, is_hidden in pairs if is_hidden]


class Registered(msgspec.Struct):
    producers: list[RegisteredNode] | None = None

    def addresses(self) -> list[str]:
        every = [each.address for each in self.producers or ()]
        return [address for address in every if is_host_and_port(address)]


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host_and_port(address: str) -> bool:
    return "://" not in address and is_address(address)
