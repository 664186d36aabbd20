"""Three nsqds and two nsqlookupds, consumers that know only the latter, and a bad day for both.

Publishers write to all nsqds all the time. One nsqd and one nsqlookupd are killed with SIGKILL and
come back. Whatever a publisher got an OK for must arrive on every channel.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.kit.daemons import ErrorFrame, Nsqd, Nsqlookupd, RawClient, wait_until
from tests.kit.interop.client_process import ClientProcess, missing_requirement
from tests.kit.nsqlookupd.fleet import get, new_nsqd, new_nsqlookupd, post

TOPIC = "fleet"
CONSUMERS = {"pynsq": "python", "nsqjs": "javascript"}  # library and channel
PING_INTERVAL_S = 2
TWO_HEARTBEATS_S = 2 * PING_INTERVAL_S
PUBLISH_PAUSE_S = 0.005
MESSAGES_A_STAGE = 100  # of each publisher, between two events
# pynsq does not connect twice to the same address within 10 s.
DELIVERY_TIMEOUT_S = 120


class Publisher:
    """Publishes to one nsqd, come what may, and remembers what was acknowledged."""

    def __init__(self, name: str, nsqd: Nsqd) -> None:
        self.acknowledged: list[bytes] = []
        self._name = name
        self._nsqd = nsqd
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        target = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= target, timeout_s=60)

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._stop.is_set():
            try:
                with self._nsqd.connect() as client:
                    self._publish(client, numbers)
            except (OSError, EOFError, ErrorFrame):
                self._stop.wait(PUBLISH_PAUSE_S)  # it is dead, or is just coming back

    def _publish(self, client: RawClient, numbers: Iterator[int]) -> None:
        while not self._stop.wait(PUBLISH_PAUSE_S):
            body = f"{self._name} {next(numbers)}".encode()
            client.publish(TOPIC, body)
            self.acknowledged.append(body)


def ports_at(nsqlookupd: Nsqlookupd) -> set[int]:
    """TCP ports of the nsqds that have the topic, as consumers are told."""
    producers = get(nsqlookupd, f"/lookup?topic={TOPIC}").get("producers", ())
    return {producer["tcp_port"] for producer in producers}


def is_right(nsqlookupd: Nsqlookupd, nsqds: list[Nsqd]) -> bool:
    """It knows these nsqds and no others, with all their channels."""
    wanted = {nsqd.tcp_port for nsqd in nsqds}
    keys = get(nsqlookupd, "/debug")
    return ports_at(nsqlookupd) == wanted and all(
        {node["tcp_port"] for node in keys.get(f"channel:{TOPIC}:{channel}", ())} == wanted
        for channel in CONSUMERS.values()
    )


@pytest.mark.e2e
def test_nothing_is_lost_while_an_nsqd_and_an_nsqlookupd_die_and_return(tmp_path: Path) -> None:
    for library in CONSUMERS:
        if reason := missing_requirement(library):
            pytest.skip(reason)
    with ExitStack() as stack:
        lookupds = [
            stack.enter_context(new_nsqlookupd(tmp_path / f"lookupd-{number}.stderr"))
            for number in range(2)
        ]
        addresses = [lookupd.tcp_address for lookupd in lookupds]
        flags = [f"--lookupd-ping-interval={PING_INTERVAL_S}s"]
        nsqds = [
            stack.enter_context(new_nsqd(tmp_path / f"nsqd-{number}", *addresses, flags=flags))
            for number in range(3)
        ]
        # The channels are made on one node; the others take them from the nsqlookupds.
        post(nsqds[0], f"/topic/create?topic={TOPIC}")
        for channel in CONSUMERS.values():
            post(nsqds[0], f"/channel/create?topic={TOPIC}&channel={channel}")
        for lookupd in lookupds:
            wait_until(lambda lookupd=lookupd: is_right(lookupd, nsqds[:1]))
        publishers = [
            stack.enter_context(Publisher(f"nsqd-{number}", nsqd))
            for number, nsqd in enumerate(nsqds)
        ]
        clients = [
            _consume(stack, library, tmp_path, [lookupd.http_address for lookupd in lookupds])
            for library in CONSUMERS
        ]
        for lookupd in lookupds:
            wait_until(lambda lookupd=lookupd: is_right(lookupd, nsqds), TWO_HEARTBEATS_S)
        for publisher in publishers:
            publisher.wait_for_more(MESSAGES_A_STAGE)

        nsqds[1].kill()
        lookupds[0].kill()
        wait_until(lambda: is_right(lookupds[1], [nsqds[0], nsqds[2]]), TWO_HEARTBEATS_S)
        publishers[0].wait_for_more(MESSAGES_A_STAGE)
        publishers[2].wait_for_more(MESSAGES_A_STAGE)

        lookupds[0].restart()
        wait_until(lambda: is_right(lookupds[0], [nsqds[0], nsqds[2]]), TWO_HEARTBEATS_S)
        nsqds[1].restart()
        for lookupd in lookupds:
            wait_until(lambda lookupd=lookupd: is_right(lookupd, nsqds), TWO_HEARTBEATS_S)
        for publisher in publishers:
            publisher.wait_for_more(MESSAGES_A_STAGE)
            publisher.__exit__()

        acknowledged = {body for publisher in publishers for body in publisher.acknowledged}
        assert len(acknowledged) >= 8 * MESSAGES_A_STAGE
        for client in clients:
            client.wait_for_bodies(acknowledged, DELIVERY_TIMEOUT_S)


def _consume(stack: ExitStack, library: str, tmp_path: Path, lookupds: list[str]) -> ClientProcess:
    client = ClientProcess(library, "127.0.0.1:1", tmp_path / f"{library}.stderr")
    stack.callback(client.kill)
    client.consume(
        library,
        TOPIC,
        CONSUMERS[library],
        auto_finish=True,
        max_in_flight=30,
        lookupd_http_addresses=lookupds,
    )
    return client
