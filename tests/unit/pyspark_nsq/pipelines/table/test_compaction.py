"""Which small files are put together, and what it costs."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.pipelines.table.compaction import GROUP_FILES_MIN, choose
from pyspark_nsq.pipelines.table.storage import StoredFile

FILE_BYTES = 1000


def files(*sizes: int) -> list[StoredFile]:
    return [StoredFile(f"file:/t/{n}.parquet", size, 0, 0, 1) for n, size in enumerate(sizes)]


def chosen(*sizes: int) -> list[int]:
    groups = choose({"d": files(*sizes)}, file_bytes=FILE_BYTES)
    return sorted(file.size_bytes for _, group in groups for file in group)


def test_few_files_and_large_files_are_left_alone() -> None:
    assert chosen(1, 2, 3) == []
    assert chosen(1, 2, 3, 1000, 5000) == []


def test_a_larger_file_waits_until_the_small_ones_are_as_much() -> None:
    assert chosen(10, 10, 10, 10, 500) == [10, 10, 10, 10]
    assert chosen(100, 100, 100, 100, 300) == [100, 100, 100, 100, 300]


@given(st.lists(st.integers(1, 2000), max_size=40))
def test_a_group_is_of_small_files_and_bounded(sizes: list[int]) -> None:
    found = chosen(*sizes)
    assert all(size < FILE_BYTES for size in found)
    assert sum(found) <= 2 * FILE_BYTES
    assert not found or len(found) >= GROUP_FILES_MIN


def test_a_byte_is_rewritten_a_few_times_only() -> None:
    """A thousand batches of one file each, compacted after every tenth."""
    sizes: list[int] = []
    rewritten = 0
    for batch in range(1000):
        sizes.append(1)
        if batch % 10 == 9:
            group = chosen(*sizes)
            for size in group:
                sizes.remove(size)
            if group:
                sizes.append(sum(group))
                rewritten += sum(group)
    assert sum(sizes) == 1000
    assert len(sizes) <= 30
    assert rewritten <= 8 * 1000
