"""What a task on the machine of a node reads from its files, and when it goes on over HTTP."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_nsq.errors import DataLoss, Unreachable
from pyspark_nsq.options import ReadOptions, parse_read
from pyspark_nsq.reading import local
from pyspark_nsq.reading.plan import LogRange
from pyspark_nsq.reading.task import read_ranges
from tests.kit.daemons import Nsqd
from tests.kit.spark.topics import publish
from tests.spark.conftest import Retiring
from tests.spark.test_fetch import SCHEMA, offsets, whole

BODIES = [b"%d:" % number + b"x" * 500 for number in range(4000)]


@pytest.fixture(autouse=True)
def nothing_is_known_yet() -> Iterator[None]:
    local._elsewhere.clear()
    local.boot_id.cache_clear()
    yield
    local._elsewhere.clear()
    local.boot_id.cache_clear()


def options(node: Nsqd, **changes: str) -> ReadOptions:
    said = {"nsqd": node.http_address, "subscribe": "t", "retryForMs": "400", "fetchBytes": "65536"}
    return parse_read({**said, **changes}, streaming=False)


def bodies(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [body for batch in batches for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize("trouble", ["the node is killed", "the files are retired"])
def test_files_once_opened_are_read_to_their_end(
    start_nsqd: Callable[..., Nsqd], topic: str, trouble: str
) -> None:
    node = start_nsqd("--max-bytes-per-file=500000")
    publish(node, topic, BODIES, batch=100)
    batches = read_ranges((whole(node, topic),), options(node), SCHEMA)
    first = next(batches)
    if trouble == "the node is killed":
        node.kill()
    else:
        node.http("POST", f"/topic/delete?topic={topic}")
    assert bodies(iter([first])) + bodies(batches) == BODIES


def test_a_node_that_is_gone_from_the_start_is_told_as_over_http(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    publish(node, topic, BODIES[:10])
    wanted = whole(node, topic)
    node.kill()
    with pytest.raises(Unreachable, match="offset 0 could not be read"):
        list(read_ranges((wanted,), options(node), SCHEMA))


def over_http(caplog: pytest.LogCaptureFixture, node: Nsqd, wanted: LogRange) -> str:
    """Reads the range, which has to come whole, and returns why it was not read from files."""
    with caplog.at_level(logging.INFO, logger="pyspark_nsq.reading.local"):
        assert bodies(read_ranges((wanted,), options(node), SCHEMA)) == BODIES
    (record,) = [r for r in caplog.records if r.name == "pyspark_nsq.reading.local"]
    return record.getMessage()


def test_a_node_of_another_machine_is_asked_once_and_read_over_http(
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = tmp_path / "boot_id"
    other.write_text("11111111-2222-3333-4444-555555555555\n")
    monkeypatch.setattr(local, "BOOT_ID_PATH", str(other))
    publish(nsqd, topic, BODIES, batch=100)
    assert "OTHER_MACHINE" in over_http(caplog, nsqd, whole(nsqd, topic))
    caplog.clear()
    assert bodies(read_ranges((whole(nsqd, topic),), options(nsqd), SCHEMA)) == BODIES
    assert not caplog.records


def test_a_system_without_a_boot_id_reads_over_http(
    nsqd: Nsqd, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "BOOT_ID_PATH", str(tmp_path / "none"))
    publish(nsqd, topic, BODIES, batch=100)
    assert bodies(read_ranges((whole(nsqd, topic),), options(nsqd), SCHEMA)) == BODIES


def test_a_file_that_is_not_the_node_s_is_not_read(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, BODIES[:10])
    query = f"topic={topic}&from=0&to=10&machine={local.boot_id()}"
    (said,) = json.loads(nsqd.http("GET", f"/log/files?{query}")[1])["files"]
    twin = tmp_path / "twin.log"
    shutil.copyfile(said["path"], twin)
    for path, why in (
        (twin, "is another file on this side"),
        (tmp_path / "no" / "file", "is not on this side"),
    ):
        file = local.LogFile(str(path), said["device"], said["inode"], [])
        with pytest.raises(local.NsqError, match=why):
            local._opened(file)


@pytest.mark.slow
def test_retired_rows_are_told_as_over_http(retiring: Retiring) -> None:
    first = retiring.first()
    wanted = whole(retiring.nsqd, retiring.topic)
    with pytest.raises(DataLoss, match=f"offset 0 is retired, the oldest is {first};"):
        list(read_ranges((wanted,), options(retiring.nsqd), SCHEMA))
    allowed = options(retiring.nsqd, failOnDataLoss="false")
    assert offsets(read_ranges((wanted,), allowed, SCHEMA)) == list(range(first, retiring.count))
