"""`/log/offsets` on a machine whose clock is set back: replies count messages in memory, too."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from pumpline.log.group_commit import DIRECT_BYTES
from pumpline.nsqd.queue.tick import CHANNELS_AT_ONCE
from tests.kit.sim.machine import Machine
from tests.kit.sim.seams import simulated

HOUR_NS = 3600 * 10**9


@pytest.fixture
def machine() -> Iterator[Machine]:
    chance = random.Random(1)
    machine = Machine(chance)
    with simulated(
        machine.disk,
        machine.clock,
        chance,
        channels_at_once=CHANNELS_AT_ONCE,
        direct_bytes=DIRECT_BYTES,
    ):
        machine.start()
        yield machine
        machine.kill()


def publish(machine: Machine, *bodies: bytes) -> None:
    assert machine.request("POST", "/mpub?topic=t", b"\n".join(bodies)).is_ok


def offsets(machine: Machine, **params: int) -> dict[str, Any]:
    query = "".join(f"&{name}={value}" for name, value in params.items())
    reply = machine.request("GET", f"/log/offsets?topic=t{query}")
    assert reply.is_ok
    return dict(reply.json())


@pytest.mark.parametrize("params", [{}, {"time": 0}])
def test_messages_in_memory_count_for_the_order_of_publish_times(
    machine: Machine, params: dict[str, int]
) -> None:
    publish(machine, b"a", b"b")
    machine.clock.wall_set_ns -= HOUR_NS
    publish(machine, b"c")
    found = offsets(machine, **params)
    assert (found["end"], found["ordered_from"]) == (3, 2)
    machine.clock.wall_set_ns -= HOUR_NS
    publish(machine, b"d")
    assert offsets(machine, **params)["ordered_from"] == 3
