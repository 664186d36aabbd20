"""Faults of the archive that were mended, put in one at a time: the simulator finds each. The
search begins at a seed that found it, and ends after SEEDS of them."""

from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pyspark_nsq.nodes import directory
from pyspark_nsq.nodes.positions import Position
from pyspark_nsq.pipelines import archive
from pyspark_nsq.pipelines.running.batch_range import FixedStart, fixed_start
from pyspark_nsq.pipelines.table import manifest
from pyspark_nsq.pipelines.table.seen_keys import SeenKeys
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import ParquetTable
from pyspark_nsq.reading.stream import StreamReader
from tests.kit.sim.pipelines import simulation
from tests.kit.sim.pipelines.actions import generate
from tests.kit.sim.pipelines.seams import KEY_FILES_MAX
from tests.kit.sim.pipelines.simulation import play

SEEDS = 60  # within which it is to be found


class Fault(NamedTuple):
    changes: tuple[tuple[type | ModuleType, str, Any], ...]
    seed: int  # that finds it
    signs: tuple[str, ...]  # one of them is in what the simulator reports


class _WithFirstBatch:
    """A checkpoint in which `commits/0` alone says that the stream has begun."""

    def __init__(self, checkpoint: Storage) -> None:
        self._checkpoint = checkpoint

    def batches(self, name: str) -> list[int]:
        found = self._checkpoint.batches(name)
        return found if 0 in found else []

    def read_text(self, name: str) -> str | None:
        return self._checkpoint.read_text(name)


def _start_by_first_batch(options: dict[str, str], checkpoint: Storage) -> FixedStart:
    return fixed_start(options, _WithFirstBatch(checkpoint))  # type: ignore[arg-type]


def _put_together_in_place(seen: Any, batch: int) -> None:
    """As before directories had a mark: it writes to a directory that it also reads."""
    names = seen._names(batch)
    if len(names) > KEY_FILES_MAX:
        together = f"{max(int(name.removesuffix('-all')) for name in names)}-all"
        keys = seen._known(batch).coalesce(1)
        keys.write.mode("overwrite").orc(seen._storage.path(together))
        for name in names:
            if name != together:
                seen._storage.delete(name)


def _all_names(seen: Any, batch: int) -> list[str]:
    names = seen._storage.names()
    return sorted(name for name in names if int(name.removesuffix("-all")) < batch)


def _keep_end(reader: Any, place: Position, state: Any) -> Position:
    return Position(state.log, state.end, state.row_bytes, state.now_ns)


def _append_again(table: Any, batch: int, rows: Any, *, query_id: str, checkpoint: str) -> None:
    """A batch that the table has is written again, under another number."""
    newest = manifest.newest_batch(table.storage)
    _APPEND(table, max(batch, newest + 1), rows, query_id=query_id, checkpoint=checkpoint)


_APPEND = ParquetTable.append

FAULTS = {
    "nodes that nsqlookupd has lost are not missed": Fault(
        ((directory, "_lost", lambda answer, wants: iter(())),), 37, ("unread at",)
    ),
    "a start takes commits/0 as the sign that the stream has begun": Fault(
        ((archive, "fixed_start", _start_by_first_batch),), 0, ("needs a node",)
    ),
    "keys are put together in a directory that is read": Fault(
        ((SeenKeys, "put_together", _put_together_in_place), (SeenKeys, "_names", _all_names)),
        12,
        ("UNSUPPORTED_OVERWRITE", "more than once"),
    ),
    "a log that went back is read from its end": Fault(
        ((StreamReader, "_after", _keep_end),), 452, ("unread at",)
    ),
    "a batch that is repeated is written again": Fault(
        ((ParquetTable, "append", _append_again),), 2, ("twice",)
    ),
    "the hold stays where the batch before ended": Fault(
        ((simulation, "commit_last_batch", lambda options, checkpoint: None),), 3, ("hold of",)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    for owner, attribute, instead in fault.changes:
        monkeypatch.setattr(owner, attribute, instead)
    batches = kills = 0
    for seed in range(fault.seed, fault.seed + SEEDS):
        played = play(generate(seed))
        batches, kills = batches + played.batches, kills + played.kills
        if played.faults:
            print(
                f"{name}: seed {seed}, after {batches} batches, {kills} kills: {played.faults[0]}"
            )
            assert any(sign in played.faults[0] for sign in fault.signs), played.faults[0]
            return
    pytest.fail(f"not found in {SEEDS} seeds with {batches} batches and {kills} kills")
