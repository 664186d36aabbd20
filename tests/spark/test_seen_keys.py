"""The keys of --dedupe: known by the time of publishing, and through a kill at any step."""

import itertools
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.pipelines.json_events.events import KEY
from pyspark_nsq.pipelines.table import seen_keys
from pyspark_nsq.pipelines.table.seen_keys import FILES_MAX, SeenKeys
from tests.kit.sim.pipelines.frames import SimFrame, SimSpark
from tests.kit.sim.pipelines.hadoop import Killed, SimFiles
from tests.kit.sim.pipelines.seams import simulated_frames

CHECKPOINT = "/table/_checkpoint"


def sim_rows(spark: SimSpark, *keys: str) -> SimFrame:
    found = [
        {"topic": "t", KEY: key, "node": "n", "offset": number, "timestamp": 0.0}
        for number, key in enumerate(keys)
    ]
    return spark.frame(lambda: found)


def one_batch(files: SimFiles, batch: int) -> list[str]:
    """As the archive does it: a new key, and the keys of all batches before, which are known."""
    spark = SimSpark(files)
    seen = SeenKeys(spark, CHECKPOINT, "1 hour")  # type: ignore[arg-type]
    seen.put_together(batch)
    rows = sim_rows(spark, *(str(number) for number in range(batch + 1)))
    fresh = seen.fresh(rows, batch)  # type: ignore[arg-type]
    seen.keep(fresh, batch)
    return sorted(row[KEY] for row in fresh.rows())  # type: ignore[attr-defined]


def test_a_kill_at_any_step_loses_no_key_and_the_next_start_goes_on() -> None:
    kills = 0
    with simulated_frames():
        written = SimFiles()
        for batch in range(2 * FILES_MAX + 2):
            before = written.copy()
            assert one_batch(written, batch) == [str(batch)]
            if batch not in (FILES_MAX + 1, 2 * FILES_MAX + 1):  # it puts none together
                continue
            for step in itertools.count():
                files = before.copy()
                files.revive(kill_at=step)
                try:
                    one_batch(files, batch)
                    break  # it takes fewer steps than that
                except Killed:
                    kills += 1
                files.revive(kill_at=step // 2)
                with suppress(Killed):
                    one_batch(files, batch)
                for number in (batch, batch + 1):
                    files.revive()
                    found = one_batch(files, number)
                    assert found == [str(number)], f"killed at step {step} of batch {batch}"
    assert kills > 2 * FILES_MAX


@pytest.mark.slow
@pytest.mark.e2e
def test_keys_are_put_together_and_forgotten_by_the_time_of_publishing(
    spark: SparkSession, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_keys, "FILES_MAX", 4)
    began = datetime.now(UTC) - timedelta(days=30)

    def rows(hours: float, *keys: str) -> DataFrame:
        at = began + timedelta(hours=hours)
        values = [("t", key, "n", f"{number}", number, at) for number, key in enumerate(keys)]
        columns = f"topic STRING, {KEY} STRING, node STRING, id STRING, offset INT"
        return spark.createDataFrame(values, f"{columns}, timestamp TIMESTAMP")

    def fresh(batch: int, hours: float, *keys: str) -> list[str]:
        return sorted(row[KEY] for row in seen.fresh(rows(hours, *keys), batch).collect())

    seen = SeenKeys(spark, str(work), "1 hour")
    for batch in range(5):  # one every ten minutes
        seen.keep(rows(batch / 6, str(batch)), batch)
    assert fresh(3, 1, "1", "3", "3") == ["3"]  # a batch that is repeated knows those before it
    seen.put_together(5)
    assert [path.name for path in (work / "keys").iterdir()] == ["4-all"]
    assert fresh(5, 1, "0", "1", "2", "3", "4", "5") == ["5"]
    # An hour and 20 minutes after the first: those of the first 20 minutes are forgotten.
    seen.keep(rows(8 / 6, "later"), 5)
    assert fresh(6, 2, "0", "1", "2", "3", "4", "later") == ["0", "1", "2"]
    assert list(work.glob("**/*.parquet")) == []  # DuckDB would take them for the table's
