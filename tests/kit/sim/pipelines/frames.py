"""A small stand-in for Spark's session and frames: rows are dicts, computed when they are needed.

Files are written as Spark's committer does it: an existing directory is deleted, files are written
below `_temporary`, moved into place one by one, and then `_SUCCESS` is written. Like Spark, it
refuses to overwrite a directory that it reads from. Only what the pipelines call is here.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tests.kit.sim.pipelines.hadoop import SimFiles, SimJvm, plain

Row = dict[str, Any]
Load = Callable[[dict[str, str]], list[Row]]  # reads what options of format("nsq") name


class SimSpark:
    """A session of one process."""

    def __init__(self, files: SimFiles, load: Load = lambda options: []) -> None:
        self.files = files
        self.load = load
        self._jvm = SimJvm(files)

    @property
    def _jsc(self) -> "SimSpark":
        return self

    def hadoopConfiguration(self) -> None: ...

    @property
    def read(self) -> "SimReader":
        return SimReader(self)

    def createDataFrame(self, rows: list[Row], schema: object) -> "SimFrame":
        return self.frame(lambda: list(rows))

    def frame(self, compute: Callable[[], list[Row]], sources: Iterable[str] = ()) -> "SimFrame":
        return SimFrame(self, compute, frozenset(sources))


class SimReader:
    def __init__(self, spark: SimSpark) -> None:
        self._spark = spark
        self._options: dict[str, str] = {}

    def schema(self, schema: object) -> "SimReader":
        return self

    def format(self, name: str) -> "SimReader":
        return self

    def option(self, name: str, value: str) -> "SimReader":
        self._options[name] = value
        return self

    def options(self, **options: str) -> "SimReader":
        self._options |= options
        return self

    def parquet(self, *paths: str) -> "SimFrame":
        files = self._spark.files
        found: list[str] = []
        for path in map(plain, paths):
            files.alive()
            if path in files.content:
                found.append(path)
            elif path in files.directories:
                inside = [each for each in files.content if each.startswith(f"{path}/")]
                found += [each for each in inside if not _is_hidden(each[len(path) :])]
            else:
                raise FileNotFoundError(f"PATH_NOT_FOUND {path}")  # Spark's AnalysisException

        def compute() -> list[Row]:
            files.alive()
            return [dict(row) for each in sorted(found) for row in files.content[each]]

        return self._spark.frame(compute, map(plain, paths))

    def orc(self, paths: list[str]) -> "SimFrame":
        return self.parquet(*paths)

    def load(self) -> "SimFrame":
        options = dict(self._options)
        return self._spark.frame(lambda: self._spark.load(options))


def _is_hidden(path: str) -> bool:
    return any(name.startswith(("_", ".")) for name in path.split("/"))


class SimFrame:
    def __init__(
        self, spark: SimSpark, compute: Callable[[], list[Row]], sources: frozenset[str]
    ) -> None:
        self.sparkSession = spark
        self.sources = sources  # directories and files that its rows come from
        self._compute = compute
        self._kept: list[Row] | None = None
        self._is_persisted = False

    def rows(self) -> list[Row]:
        if self._kept is not None:
            return self._kept
        found = self._compute()
        if self._is_persisted:
            self._kept = found
        return found

    def map(self, change: Callable[[list[Row]], list[Row]], *others: "SimFrame") -> "SimFrame":
        """A frame made of this one, and of others that `change` reads."""
        sources = self.sources.union(*(other.sources for other in others))
        return SimFrame(self.sparkSession, lambda: change(self.rows()), sources)

    def persist(self) -> "SimFrame":
        self._is_persisted = True
        return self

    def unpersist(self) -> None:
        self._is_persisted, self._kept = False, None

    def count(self) -> int:
        return len(self.rows())

    def isEmpty(self) -> bool:
        return not self.rows()

    def coalesce(self, count: int) -> "SimFrame":
        return self

    def drop(self, name: str) -> "SimFrame":
        return self.map(lambda rows: [{k: v for k, v in r.items() if k != name} for r in rows])

    def where(self, condition: str) -> "SimFrame":
        name, _, rest = condition.partition(" ")
        assert rest == "IS NOT NULL", condition
        return self.map(lambda rows: [row for row in rows if row.get(name) is not None])

    @property
    def write(self) -> "SimWriter":
        return SimWriter(self)


class SimWriter:
    def __init__(self, frame: SimFrame) -> None:
        self._frame = frame
        self._by: tuple[str, ...] = ()
        self._overwrites = False

    def mode(self, mode: str) -> "SimWriter":
        self._overwrites = mode == "overwrite"
        return self

    def option(self, name: str, value: str) -> "SimWriter":
        return self

    def partitionBy(self, *names: str) -> "SimWriter":
        self._by = names
        return self

    def parquet(self, path: str) -> None:
        self._save(plain(path), "parquet")

    def orc(self, path: str) -> None:
        self._save(plain(path), "orc")

    def _save(self, path: str, suffix: str) -> None:
        spark = self._frame.sparkSession
        files = spark.files
        if path in self._frame.sources:
            raise ValueError(f"UNSUPPORTED_OVERWRITE {path} is also being read from")
        java = spark._jvm
        if self._overwrites:
            files.delete(java.Path(path), True)
        elif files.exists(java.Path(path)):
            raise FileExistsError(path)
        parts: dict[str, list[Row]] = {}  # by the name of the file
        for row in self._frame.rows():
            place = "".join(f"{name}={row[name]}/" for name in self._by)
            kept = {name: value for name, value in row.items() if name not in self._by}
            parts.setdefault(f"{place}part-0.{suffix}", []).append(kept)
        temporary = f"{path}/_temporary/0"
        files.mkdirs(java.Path(temporary))
        for name, rows in sorted(parts.items()):
            files.put(f"{temporary}/{name}", rows)
        for name in sorted(parts):
            target = java.Path(f"{path}/{name}")
            files.mkdirs(java.Path(target.plain.rpartition("/")[0]))
            files.rename(java.Path(f"{temporary}/{name}"), target)
        files.delete(java.Path(f"{path}/_temporary"), True)
        files.put(f"{path}/_SUCCESS", "")
