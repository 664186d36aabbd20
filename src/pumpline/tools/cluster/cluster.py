"""All nsqds that a command works with, asked side by side; what failed is kept by node.

Nodes come from flags, or from nsqlookupds: all that any of them knows. A failing node or
nsqlookupd never hides the answers of the others.
"""

import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import OptionsError
from pumpline.tools.cluster.node import ClusterNode, NodeFailure, is_address
from pumpline.tools.cluster.options import ClusterOptions

THREADS_MAX = 32
MISREAD = (AttributeError, LookupError, TypeError, ValueError)
"""What comes of taking an answer for one of nsqd that is JSON, but none of nsqd."""
GIVEN = ""  # in place of the nsqlookupd that knows a node

T = TypeVar("T")


class Answers(NamedTuple, Generic[T]):
    """What nodes said, in the order they were asked."""

    by_node: dict[str, T]
    failures: dict[str, str]  # why, by node


class ClusterClient:
    """A context manager: it has sockets."""

    def __init__(self, options: ClusterOptions, *, is_mixed: bool = False) -> None:
        """OptionsError if an address, a file or a certificate cannot be used; `is_mixed`: nsqds may
        be given beside nsqlookupds."""
        options.with_environment()
        for address in (*options.nsqd, *options.lookupd):
            if not is_address(address):
                raise OptionsError(f"{address!r} is no address: expected <host>:<port>")
        if options.nsqd and options.lookupd and not is_mixed:
            raise OptionsError("use --nsqd or --lookupd, not both")
        self._tls = cache(options.tls)  # 25 ms, for nodes with https:// only
        if options.has_tls_flags:
            self._tls()
        self._timeout_s = options.timeout_ns / NS_PER_S
        self._token = options.access_token()
        self._given = [self.new_node(each) for each in dict.fromkeys(options.nsqd)]
        self._nodes = {node.address: node for node in self._given}
        # Without the access token: it is for nsqds.
        self.lookupds = [
            self._new(each, is_nsqlookupd=True) for each in dict.fromkeys(options.lookupd)
        ]

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in (*self._nodes.values(), *self.lookupds):
            node.close()

    def discover(self) -> Answers[list[ClusterNode]]:
        """The nsqds: `by_node` is by nsqlookupd, and under GIVEN has those given by flags."""
        if not self.lookupds:
            return Answers({GIVEN: self._given}, {})
        answers = self.each(self.lookupds, _addresses)
        found = {address: self._known(addresses) for address, addresses in answers.by_node.items()}
        if self._given:
            found[GIVEN] = self._given
        return Answers(found, answers.failures)

    def each(self, nodes: Iterable[ClusterNode], ask: Callable[[ClusterNode], T]) -> Answers[T]:
        """Ask all nodes at once."""
        asked = list(nodes)
        said = _side_by_side(asked, ask)
        answers: Answers[T] = Answers({}, {})
        for index, node in enumerate(asked):
            answer = said[index]
            if isinstance(answer, NodeFailure):
                answers.failures[node.address] = str(answer)
            else:
                answers.by_node[node.address] = answer
        return answers

    def _known(self, addresses: list[str]) -> list[ClusterNode]:
        for address in addresses:
            if address not in self._nodes:
                self._nodes[address] = self.new_node(address)
        return [self._nodes[address] for address in addresses]

    def new_node(self, address: str) -> ClusterNode:
        """With a connection of its own, for a thread of its own."""
        return self._new(address, token=self._token)

    def _new(self, address: str, *, token: str = "", is_nsqlookupd: bool = False) -> ClusterNode:
        return ClusterNode(
            address,
            timeout_s=self._timeout_s,
            tls=self._tls,
            token=token,
            is_nsqlookupd=is_nsqlookupd,
        )


def _side_by_side(
    nodes: list[ClusterNode], ask: Callable[[ClusterNode], T]
) -> dict[int, T | NodeFailure]:
    """What each says, by its place in the list.

    In daemon threads, not those of an executor: nobody waits for a node that hangs when the
    command ends.
    """
    said: dict[int, T | NodeFailure] = {}
    errors: list[BaseException] = []
    left = iter(range(len(nodes)))  # next() of it is atomic

    def work() -> None:
        for index in left:
            try:
                said[index] = ask(nodes[index])
            except NodeFailure as failure:
                said[index] = failure
            except MISREAD as error:
                said[index] = NodeFailure(f"its answer makes no sense: {error!r}")
            except BaseException as error:  # the root of a thread: the one who waits gets it
                errors.append(error)
                return

    threads = [
        threading.Thread(target=work, name="node", daemon=True)
        for _ in range(min(len(nodes), THREADS_MAX))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return said


def _addresses(lookupd: ClusterNode) -> list[str]:
    """The HTTP addresses of the nsqds that an nsqlookupd knows."""
    answer: Any = lookupd.get_json("/nodes")
    try:
        answer = answer.get("data", answer)  # NSQ before 1.0
        pairs = [
            (node["broadcast_address"], int(node["http_port"])) for node in answer["producers"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NodeFailure("it answers /nodes as no nsqlookupd does") from None
    joined = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in pairs]
    return [each for each in joined if is_address(each)]


def unique(found: Answers[list[ClusterNode]]) -> list[ClusterNode]:
    """Every node once: those given by flags in their order, then the others by address."""
    nodes = {node.address: node for node in found.by_node.get(GIVEN, ())}
    others = {node.address: node for each in found.by_node.values() for node in each}
    for address in sorted(others):
        nodes.setdefault(address, others[address])
    return list(nodes.values())
