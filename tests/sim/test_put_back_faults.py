"""Faults that were mended, and some that the design rules out, put in one at a time: the simulator
finds each. The search begins at a seed that found it, and ends after SEEDS of them: another way to
make up histories needs other seeds."""

from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pumpline.log import ranges
from pumpline.log.flusher import Flusher
from pumpline.log.group_commit import GroupCommit
from pumpline.log.log import Log
from pumpline.log.wal import Unflushed, WriteAheadLog
from pumpline.nsqd.http.admin import AdminEndpoints
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.publish_tokens import PublishTokens
from tests.kit.sim.actions import generate
from tests.kit.sim.simulation import play

SEEDS = 100  # within which it is to be found: 10 s


class Fault(NamedTuple):
    owner: type | ModuleType
    attribute: str
    instead: Any
    seed: int  # that finds it
    signs: tuple[str, ...]  # one of them is in what the simulator reports


async def _write_no_cursor(*_: object) -> None: ...


def _acknowledge_anyway(group_commit: GroupCommit, parts: list[bytes | memoryview]) -> None:
    """As `GroupCommit._append_with_room`; whether the append succeeds makes no difference."""
    with suppress(OSError):
        group_commit._wal.append(parts)


def _acknowledge_unsynced(disk: Disk, group_commit: GroupCommit) -> None:
    """As `Disk.request_sync`, without the fsync."""
    group_commit.take_dirty()
    group_commit.sync_done([], None)


def _remove_unsynced(flusher: Flusher) -> None:
    """As `Flusher._sync`, without the fsync: the write-ahead log goes."""
    flusher._flushed.clear()
    flusher._end()


NOT_THERE = ("and must have", "is gone", "did not come", "are not synced", "are not finished")

FAULTS = {
    "what comes back goes before what is ready": Fault(
        Channel,
        "_ready_queue_end",
        property(lambda channel: 0),
        14,
        ("was ready before it came back",),
    ),
    "a refused publish leaves a topic behind": Fault(
        Topic,
        "drop_if_unused",
        lambda topic: None,
        516,
        ("is there, after a refused publish",),
    ),
    "a kill undoes an empty": Fault(
        AdminEndpoints,
        "_checkpointed",
        _write_no_cursor,
        18,
        ("DROPPED", "are not finished", "expected"),
    ),
    "a restart forgets publish tokens": Fault(
        PublishTokens,
        "restore",
        lambda tokens, stored: None,
        27,
        ("it is there twice", "are not finished"),
    ),
    "a completion whatever became of the append": Fault(
        GroupCommit, "_append_with_room", _acknowledge_anyway, 15, NOT_THERE
    ),
    "a completion before the fsync": Fault(
        Disk, "request_sync", _acknowledge_unsynced, 10, NOT_THERE
    ),
    "the write-ahead log goes before the segments are synced": Fault(
        Flusher, "_sync", _remove_unsynced, 0, NOT_THERE
    ),
    "what an fsync may have lost is not written again": Fault(
        Log, "write_again", lambda log, mark: None, 271, NOT_THERE
    ),
    "a gap that a loss of power left is not filled from the write-ahead log": Fault(
        Unflushed, "repair", lambda unflushed, log: None, 754, NOT_THERE
    ),
    "one timestamp for a batch of many ticks": Fault(
        ranges,
        "_find_time_in_batch",
        lambda fd, place, time_ns, start: None,
        14,
        ("instead of",),
    ),
    "what was refused stays in the write-ahead log": Fault(
        WriteAheadLog,
        "cut_back",
        lambda wal: None,
        178,
        ("is in the log, and was refused", "it was refused", "are not finished"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.owner, fault.attribute, fault.instead)
    kills = 0
    for seed in range(fault.seed, fault.seed + SEEDS):
        played = play(generate(seed))
        kills += played.kills
        if played.faults:
            print(f"{name}: seed {seed}, after {kills} kills: {played.faults[0]}")
            assert any(sign in played.faults[0] for sign in fault.signs), played.faults[0]
            return
    pytest.fail(f"not found in {SEEDS} seeds with {kills} kills")
