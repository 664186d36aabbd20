"""The nodes that nsqlookupds name: those that they list, and those that went away.

An nsqlookupd of NSQ has no memory of nodes that went away; then there are none. Knows the JSON of
/lookup and /nodes; must not know connections.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

LOST: Mapping[str, object] = {"lost": "true"}  # the parameter that asks for them, too
PORT_MAX = (1 << 16) - 1

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node in the answer of an nsqlookupd."""

    address: str  # of HTTP: http://host:port
    name: str  # host:port of TCP, as in the column `node`
    lost_ns: int = 0  # when it went away; 0: it is listed

    @property
    def since(self) -> str:
        moment = datetime.fromtimestamp(self.lost_ns // _NS_PER_S, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def named_nodes(answer: object, wants: Callable[[str], bool]) -> list[NamedNode]:
    """The nodes in an answer of /lookup or /nodes. A lost node of /nodes is left out if it had no
    topic that is wanted."""
    return [*_listed(answer), *_lost(answer, wants)]


def merged(answers: list[list[NamedNode]]) -> dict[str, NamedNode]:
    """By address. A node that one nsqlookupd lists is not lost, whatever others say; else it is
    away since the last of them has lost it."""
    found: dict[str, NamedNode] = {}
    for node in (node for answer in answers for node in answer):
        other = found.get(node.address)
        if other is None or (other.lost_ns and (not node.lost_ns or node.lost_ns > other.lost_ns)):
            found[node.address] = node
    return found


def _listed(answer: object) -> Iterator[NamedNode]:
    for entry in _entries(answer, "producers"):
        if (named := _named(entry)) is not None:
            yield named


def _lost(answer: object, wants: Callable[[str], bool]) -> Iterator[NamedNode]:
    for entry in _entries(answer, "lost"):
        topics, lost_ns = entry.get("topics"), entry.get("lost_at")
        had = not isinstance(topics, list) or any(wants(str(topic)) for topic in topics)
        named = _named(entry)
        if named is not None and isinstance(lost_ns, int) and (had or entry.get("any_topic")):
            yield NamedNode(named.address, named.name, max(lost_ns, 1))


def _named(entry: Mapping[str, object]) -> NamedNode | None:
    host, tcp, http = (entry.get(key) for key in ("broadcast_address", "tcp_port", "http_port"))
    if not isinstance(host, str) or not isinstance(http, int) or not 0 < http <= PORT_MAX:
        return None
    shown = f"[{host}]" if ":" in host else host
    return NamedNode(f"http://{shown}:{http}", f"{host}:{tcp}")


def _entries(answer: object, key: str) -> Iterator[Mapping[str, object]]:
    entries = answer.get(key) if isinstance(answer, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield entry
