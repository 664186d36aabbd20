"""Faults that were mended, put back one at a time: the simulator finds each.

`.venv/bin/python -m pytest tests/sim -m soak` runs this. Each takes seconds to minutes.
"""

from collections.abc import Callable
from typing import Any

import pytest

from pumpline.nsqd.http.admin import AdminEndpoints
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.journaling import Journaling
from pumpline.nsqd.queue.publish_tokens import PublishTokens
from pumpline.nsqd.queue.topic import Topic
from tests.kit.sim.actions import generate
from tests.kit.sim.simulation import play

SEEDS = 800  # within which it is to be found


async def _write_no_cursor(*_: object) -> None: ...


def _leave_at_once(journaling: Journaling, topic: Topic) -> None:
    """As `Journaling.leave`, without writing what was put in this tick: it matters if a timer files
    the topic between a publish and its tick."""
    journaling.batches.pop(topic.pub_line, None)
    if topic.journaled is not None and not topic.journaled.ends:
        journaling._drop(topic)


FAULTS: dict[str, tuple[type, str, Any, Callable[[str], bool]]] = {
    "what comes back goes before what is ready": (
        Channel,
        "_last_in_line",
        property(lambda channel: 0),
        lambda fault: "was ready before it came back" in fault,
    ),
    "a refused publish leaves a topic behind": (
        Topic,
        "drop_if_unused",
        lambda topic: None,
        lambda fault: "is there, after a refused publish" in fault,
    ),
    "a kill undoes an empty": (
        AdminEndpoints,
        "_checkpointed",
        _write_no_cursor,
        lambda fault: "DROPPED" in fault or "are not finished" in fault,
    ),
    "a restart forgets publish tokens": (
        PublishTokens,
        "restore",
        lambda tokens, stored: None,
        lambda fault: "it is there twice" in fault or "are not finished" in fault,
    ),
    "a topic leaves the journal before its messages are there": (
        Journaling,
        "leave",
        _leave_at_once,
        lambda fault: "KeyError" in fault or "BufferError" in fault or "refused" in fault,
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, fault, is_it = FAULTS[name]
    monkeypatch.setattr(owner, attribute, fault)
    kills = 0
    for seed in range(SEEDS):
        played = play(generate(seed))
        kills += played.kills
        if played.faults:
            print(f"{name}: seed {seed}, after {kills} kills: {played.faults[0]}")
            assert is_it(played.faults[0]), played.faults[0]
            return
    pytest.fail(f"not found in {SEEDS} seeds with {kills} kills")
