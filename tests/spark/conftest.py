"""One Spark session for each worker that needs one (each takes 10 s to start), and nsqds to read.

`local[2,4]`: two tasks at once, and a task may fail three times, as on a cluster; plain local mode
would give up at the first.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.columns import SCHEMA, arrow_schema
from pyspark_nsq.options import parse_read
from pyspark_nsq.reading.stream import StreamReader
from pyspark_nsq.session import local_session
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.spark.drivers import QUICK_FLAGS
from tests.kit.spark.home import quick_home
from tests.kit.spark.stream_reader import NewReader
from tests.kit.spark.topics import end_of, first_of, publish

_numbers = itertools.count(1)

# Retries that end soon: a test that is to fail must not take a minute.
QUICK = {"requestTimeoutMs": "5000", "retryForMs": "1500"}


@pytest.fixture(scope="session", autouse=True)
def quick_spark_home() -> None:
    """For the session of the tests and for the drivers that tests start."""
    os.environ.setdefault("SPARK_HOME", quick_home())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    session = local_session(
        "pumpline tests",
        master="local[2,4]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
            "spark.driver.memory": "1g",
            # Up in less time; nothing here runs long enough for more.
            "spark.driver.extraJavaOptions": QUICK_FLAGS,
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """A daemon that all tests share, each with topics of its own."""
    with Nsqd(tmp_path_factory.mktemp("nsqd") / "data") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def nsqlookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    with Nsqlookupd(tmp_path_factory.mktemp("nsqlookupd") / "stderr") as daemon:
        yield daemon


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[Callable[..., Nsqd]]:
    """Starts daemons that a test may kill and restart."""
    daemons: list[Nsqd] = []

    def start(*flags: str) -> Nsqd:
        daemons.append(Nsqd(tmp_path / f"nsqd-{len(daemons)}", flags))
        return daemons[-1].start()

    yield start
    for daemon in daemons:
        if daemon.is_running:
            daemon.kill()


class Retiring:
    """A topic whose oldest messages nobody needs any more, so that nsqd lets go of them."""

    topic = "retiring"
    count = 300

    def __init__(self, nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        publish(nsqd, self.topic, [b"x" * 1000] * self.count, batch=10)
        with nsqd.connect() as client:
            client.sub(self.topic, "c")
            client.rdy(100)
            for _ in range(250):
                client.fin(client.read_message().id)

    def pass_by(self, topic: str, count: int) -> None:
        """Publishes to a topic, and consumes all that is in it."""
        publish(self.nsqd, topic, [b"x" * 1000] * count, batch=10)
        with self.nsqd.connect() as client:
            client.sub(topic, "c")
            client.rdy(100)
            for _ in range(end_of(self.nsqd, topic)):
                client.fin(client.read_message().id)

    def first(self) -> int:
        """The oldest offset there is, once nsqd has let go of what it may."""
        self.nsqd.drop_history(self.topic)
        return first_of(self.nsqd, self.topic)


@pytest.fixture(scope="session")
def retiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retiring]:
    flags = ("--max-bytes-per-file=65536", "--retention-bytes=0", "--retention-time=0")
    with Nsqd(tmp_path_factory.mktemp("retiring") / "data", flags) as daemon:
        yield Retiring(daemon)


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A directory for tables and checkpoints, gone when the test is over."""
    path = tmp_path / "work"
    path.mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def new_reader() -> Iterator[NewReader]:
    readers: list[StreamReader] = []

    def make(*nodes: Nsqd, **said: str) -> StreamReader:
        known = {
            **QUICK,
            "startingOffsets": "earliest",
            "nsqd": ",".join(node.http_address for node in nodes),
        }
        options = parse_read({**known, **said}, streaming=True)
        readers.append(StreamReader(options, arrow_schema(SCHEMA)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()
