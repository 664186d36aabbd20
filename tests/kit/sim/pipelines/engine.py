"""A stand-in for Spark's micro-batch engine, in the order that Spark documents.

| step of a batch | what it does |
|---|---|
| plan | `latestOffset` of the source; if it is another place than before, `offsets/N` is written |
| report | `commit` of the source, for the batch before; checkpoints older than `KEPT` are deleted |
| read | `partitions`, and the rows when the function of foreachBatch computes them |
| sink | the function of foreachBatch |
| done | `commits/N` is written |

After a restart the newest batch of `offsets` that `commits` does not have is run again, from the
end of the batch before it; of the first batch, the source says where it begins. All files are those
of Spark's checkpoint.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.columns import SCHEMA, arrow_schema
from pyspark_nsq.options import parse_read
from pyspark_nsq.reading.batch import BatchReader
from pyspark_nsq.reading.stream import StreamReader
from tests.kit.sim.pipelines.frames import Row, SimFrame, SimSpark
from tests.kit.sim.pipelines.hadoop import plain

KEPT = 5  # batches: minBatchesToRetain, which is 100 in Spark
Offsets = dict[str, Any]


def load(options: dict[str, str]) -> list[Row]:
    """What `spark.read.format("nsq")` reads."""
    reader = BatchReader(parse_read(options, streaming=False), arrow_schema(SCHEMA))
    return _rows(reader, reader.partitions())


def _rows(reader: BatchReader | StreamReader, planned: list[InputPartition]) -> list[Row]:
    found = [row for part in planned for some in reader.read(part) for row in some.to_pylist()]
    for row in found:
        row["timestamp"] = row["timestamp"].timestamp()
    return found


class SimStreamFrame:
    """What `spark.readStream` and `writeStream` return, until the query starts."""

    def __init__(self, spark: SimSpark, options: dict[str, str]) -> None:
        self.spark = spark
        self.options = options
        self.checkpoint = ""
        self.once = False
        self.function: Callable[[SimFrame, int], None] = lambda rows, batch: None

    @property
    def writeStream(self) -> "SimStreamFrame":
        return self

    def foreachBatch(self, function: Callable[[SimFrame, int], None]) -> "SimStreamFrame":
        self.function = function
        return self

    def queryName(self, name: str) -> "SimStreamFrame":
        return self

    def option(self, name: str, value: str) -> "SimStreamFrame":
        self.checkpoint = plain(value)
        return self

    def trigger(self, *, availableNow: bool = False, processingTime: str = "") -> "SimStreamFrame":
        self.once = availableNow
        return self

    def start(self) -> "SimQuery":
        return SimQuery(self)


class SimQuery:
    """A running query; `trigger` runs one batch."""

    def __init__(self, stream: SimStreamFrame) -> None:
        self._stream = stream
        self._files = stream.spark.files
        self.batches = 0
        if self._read("metadata") is None:
            self._write("metadata", json.dumps({"id": str(UUID(int=1))}))
        read = parse_read(stream.options, streaming=True)
        self.reader = StreamReader(read, arrow_schema(SCHEMA))
        begun = self.numbers("offsets")
        done = self.numbers("commits")
        self.batch = begun[-1] if begun else 0
        self._end: Offsets | None = self._offsets(self.batch) if begun else None
        self._start: Offsets | None = self._offsets(self.batch - 1) if self.batch else None
        self._is_planned = bool(begun)
        if begun and done and done[-1] == begun[-1]:
            self.batch, self._start, self._is_planned = self.batch + 1, self._end, False
        if stream.once:
            self.reader.prepareForTriggerAvailableNow()

    def trigger(self) -> bool:
        """Run the next batch; False if there is nothing to read."""
        reader = self.reader
        if self._start is None:
            self._start = _plain(reader.initialOffset())
        if not self._is_planned:
            end = _plain(reader.latestOffset(self._start, reader.getDefaultReadLimit()))
            if end == self._start:
                return False
            self._end = end
            self._write(f"offsets/{self.batch}", f"v1\n{{}}\n{json.dumps(end)}")
            self._is_planned = True
            if self.batch:
                reader.commit(self._offsets(self.batch - 1))
                self._purge()
        assert self._end is not None
        start, end = self._start, self._end
        planned = reader.partitions(start, end)
        frame = self._stream.spark.frame(lambda: _rows(reader, planned))
        self._stream.function(frame, self.batch)
        self._write(f"commits/{self.batch}", "v1\n{}")
        self.batch, self._start, self._is_planned = self.batch + 1, end, False
        self.batches += 1
        return True

    def stop(self) -> None:
        self.reader.stop()

    def numbers(self, name: str) -> list[int]:
        prefix = f"{self._stream.checkpoint}/{name}/"
        return sorted(int(p[len(prefix) :]) for p in self._files.content if p.startswith(prefix))

    def _offsets(self, batch: int) -> Offsets:
        text = self._read(f"offsets/{batch}")
        assert text is not None
        return _plain(json.loads(text.splitlines()[-1]))

    def _purge(self) -> None:
        for name in ("offsets", "commits"):
            for number in self.numbers(name):
                if number < self.batch - KEPT:
                    self._files.step()
                    del self._files.content[f"{self._stream.checkpoint}/{name}/{number}"]

    def _read(self, name: str) -> str | None:
        return self._files.content.get(f"{self._stream.checkpoint}/{name}")

    def _write(self, name: str, text: str) -> None:
        self._files.put(f"{self._stream.checkpoint}/{name}", text)


def _plain(offsets: Offsets) -> Offsets:
    """As Spark keeps it: a text."""
    kept: Offsets = json.loads(json.dumps(offsets))
    return kept
