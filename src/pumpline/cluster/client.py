"""All nsqds that a command works with, asked side by side; failures are kept by node.

Nodes come from flags, or from nsqlookupds: all that any of them knows. A failing node or
nsqlookupd never hides the replies of the others.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from pumpline.cluster.directory import Registered
from pumpline.cluster.node import ClusterNode, NodeFailure, is_address
from pumpline.cluster.options import ClusterOptions
from pumpline.core.text.flags import OptionsError

THREADS_MAX = 32
MISREAD = (AttributeError, LookupError, TypeError, ValueError)
"""What comes of taking a reply for one of nsqd that is JSON, but none of nsqd."""
GIVEN = ""  # in place of the nsqlookupd that knows a node

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Outcome(NamedTuple, Generic[K, T]):
    """What was replied, and what failed, in the order of asking."""

    answers: dict[K, T]
    errors: dict[K, NodeFailure]

    def in_nsq_words(self) -> list[str]:
        return [error.in_nsq_words() for error in self.errors.values()]

    @property
    def failures(self) -> dict[K, str]:
        return {key: str(error) for key, error in self.errors.items()}


class ClusterClient:
    """A context manager: it has sockets."""

    def __init__(self, options: ClusterOptions, *, is_mixed: bool = False) -> None:
        """OptionsError if an address, a file or a certificate cannot be used; `is_mixed`: nsqds may
        be given beside nsqlookupds."""
        self.label = options.with_environment()  # of the environment; empty: it has none
        for address in (*options.nsqd, *options.lookupd):
            if not is_address(address):
                raise OptionsError(f"{address!r} is no address: expected <host>:<port>")
        if options.nsqd and options.lookupd and not is_mixed:
            raise OptionsError("use --nsqd or --lookupd, not both")
        self._access = options.access()
        self._given = [self.new_node(each) for each in dict.fromkeys(options.nsqd)]
        self._nodes = {node.address: node for node in self._given}
        self.lookupds = [
            ClusterNode(each, self._access, is_nsqlookupd=True)
            for each in dict.fromkeys(options.lookupd)
        ]

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in (*self._nodes.values(), *self.lookupds):
            node.close()

    def discover(self) -> Outcome[str, list[ClusterNode]]:
        """The nsqds by nsqlookupd; under GIVEN those given by flags."""
        if not self.lookupds:
            return Outcome({GIVEN: self._given}, {})
        found = self.each(self.lookupds, lambda each: each.get_as(Registered, "/nodes").addresses())
        known = {lookupd: self._known(each) for lookupd, each in found.answers.items()}
        if self._given:
            known[GIVEN] = self._given
        return Outcome(known, found.errors)

    def each(
        self, nodes: Iterable[ClusterNode], ask: Callable[[ClusterNode], T]
    ) -> Outcome[str, T]:
        """Ask all nodes at once."""
        by_address = {node.address: node for node in nodes}
        return side_by_side(by_address, lambda address: ask(by_address[address]))

    def _known(self, addresses: list[str]) -> list[ClusterNode]:
        for address in addresses:
            if address not in self._nodes:
                self._nodes[address] = self.new_node(address)
        return [self._nodes[address] for address in addresses]

    def new_node(self, address: str) -> ClusterNode:
        """With a connection of its own, for a thread of its own."""
        return ClusterNode(address, self._access)


def side_by_side(keys: Iterable[K], ask: Callable[[K], T]) -> Outcome[K, T]:
    """Ask for all keys at once, in at most THREADS_MAX threads.

    In daemon threads, not those of an executor: nobody waits for a node that hangs when the
    program ends.
    """
    asked = list(dict.fromkeys(keys))
    said: dict[K, T] = {}
    failed: dict[K, NodeFailure] = {}
    faults: list[BaseException] = []
    left = iter(asked)  # next() of it is atomic

    def work() -> None:
        for key in left:
            try:
                said[key] = ask(key)
            except NodeFailure as failure:
                failed[key] = failure
            except MISREAD as error:
                failed[key] = NodeFailure(f"its answer makes no sense: {error!r}")
            except BaseException as error:  # the root of a thread: the one who waits gets it
                faults.append(error)
                return

    threads = [
        threading.Thread(target=work, name="node", daemon=True)
        for _ in range(min(len(asked), THREADS_MAX))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    in_order = [key for key in asked if key in said]
    return Outcome(
        {key: said[key] for key in in_order}, {key: failed[key] for key in asked if key in failed}
    )


def unique(found: Outcome[str, list[ClusterNode]]) -> list[ClusterNode]:
    """Every node once: those given by flags in their order, then the others by address."""
    nodes = {node.address: node for node in found.answers.get(GIVEN, ())}
    others = {node.address: node for each in found.answers.values() for node in each}
    for address in sorted(others):
        nodes.setdefault(address, others[address])
    return list(nodes.values())
