"""Ranges are cut into even partitions, and no row is planned twice or left out."""

import os

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.reading.plan import (
    PARTITION_BYTES,
    PARTITION_BYTES_MIN,
    LogRange,
    RangePartition,
    split,
)

CORES = os.cpu_count() or 1


def log_range(rows: int, *, topic: str = "t", start: int = 0, row_bytes: int = 240) -> LogRange:
    return LogRange(
        topic=topic,
        node="n:4150",
        address="http://n:4151",
        log="00",
        start=start,
        end=start + rows,
        row_bytes=row_bytes,
    )


def rows_of(partition: RangePartition) -> int:
    return sum(piece.rows for piece in partition.ranges)


ranges_of_any_size = st.lists(
    st.builds(
        log_range,
        st.integers(0, 5000),
        topic=st.sampled_from("abcdefgh"),
        start=st.integers(0, 1 << 50),
        row_bytes=st.integers(1, 1_000_000),
    ),
    max_size=8,
    unique_by=lambda r: r.topic,
)


@given(ranges_of_any_size, st.none() | st.integers(1, 300), st.none() | st.integers(1, 700))
def test_every_row_is_in_exactly_one_partition(
    ranges: list[LogRange], partitions_min: int | None, rows_max: int | None
) -> None:
    parts = split(ranges, partitions_min=partitions_min, rows_max=rows_max)
    pieces = [piece for part in parts for piece in part.ranges]
    for whole in ranges:
        mine = sorted((p.start, p.end) for p in pieces if p.topic == whole.topic)
        at = whole.start
        for start, end in mine:
            assert start == at < end
            at = end
        assert at == whole.end
    if rows_max is not None:
        assert all(rows_of(part) <= rows_max for part in parts)
    assert all(part.ranges for part in parts)


def test_a_large_log_gives_a_partition_a_core() -> None:
    rows = 3 * CORES * int(PARTITION_BYTES_MIN / 240)
    parts = split([log_range(rows)], partitions_min=None, rows_max=None)
    assert len(parts) == CORES
    assert max(map(rows_of, parts)) - min(map(rows_of, parts)) <= 1


def test_a_cluster_has_more_cores_than_the_driver() -> None:
    cores = 10 * CORES
    rows = 3 * cores * int(PARTITION_BYTES_MIN / 240)
    parts = split([log_range(rows)], partitions_min=None, rows_max=None, cores=cores)
    assert len(parts) == cores
    assert len(split([log_range(10)], partitions_min=None, rows_max=None, cores=cores)) == 1


def test_partitions_stay_below_spark_s_own_size() -> None:
    parts = split([log_range(10_000_000)], partitions_min=None, rows_max=None)
    assert len(parts) >= 10_000_000 * 240 / PARTITION_BYTES


def test_many_small_logs_share_one_partition() -> None:
    parts = split(
        [log_range(3, topic=f"t{n}") for n in range(50)], partitions_min=None, rows_max=None
    )
    assert len(parts) == 1
    assert len(parts[0].ranges) == 50


def test_min_partitions_cuts_small_logs_too() -> None:
    parts = split([log_range(100)], partitions_min=7, rows_max=None)
    assert len(parts) == 7
    assert {rows_of(part) for part in parts} <= {14, 15}


def test_there_are_never_more_partitions_than_rows() -> None:
    assert len(split([log_range(3)], partitions_min=100, rows_max=None)) == 3


def test_large_rows_weigh_more_than_small_ones() -> None:
    heavy = log_range(100, topic="heavy", row_bytes=100_000)
    light = log_range(100, topic="light", row_bytes=10)
    parts = split([light, heavy], partitions_min=4, rows_max=None)
    assert [rows_of(part) for part in parts][:3] == [25, 25, 25]


def test_nothing_to_read_is_no_partition() -> None:
    assert split([log_range(0)], partitions_min=4, rows_max=10) == []
