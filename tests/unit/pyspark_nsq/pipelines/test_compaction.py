"""Which small files are merged: the most crowded directories, a few of them in a run."""

from pyspark_nsq.pipelines.table.compaction import GROUPS_MAX, choose
from pyspark_nsq.pipelines.table.storage import StoredFile


def stored(count: int) -> list[StoredFile]:
    return [StoredFile(f"file:/t/{number}", 1000, 0, 0, 0) for number in range(count)]


def test_a_thousand_directories_all_have_their_turn() -> None:
    directories = {f"topic={number:03}": stored(5) for number in range(1000)}
    runs = 0
    while groups := choose(directories)[:GROUPS_MAX]:
        runs += 1
        for name, group in groups:
            assert len(group) == 5
            directories[name] = stored(1)
    assert runs == 1000 // GROUPS_MAX
    assert all(len(files) == 1 for files in directories.values())


def test_the_most_crowded_directories_come_first() -> None:
    directories = {"a": stored(4), "b": stored(9), "c": stored(3), "d": stored(6)}
    assert [name for name, _ in choose(directories)] == ["b", "d", "a"]
