"""A pipeline on a real standalone Spark: a master, two workers, and a driver that is killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.spark.drivers import QUICK_ENVIRONMENT
from tests.kit.spark.pipelines import order_ids, orders
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1200)]

HOME = Path(pyspark.__file__).parent
START_S_MAX = 120
RUN_S_MAX = 400
WORKER = ("--cores", "1", "--memory", "600m", "--host", "127.0.0.1", "--webui-port", "0")


class Processes:
    """Children with their output in a file each; all are ended at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{name}.log"
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        environment |= {"SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(self._directory / "work")}
        environment |= {"PYSPARK_PYTHON": sys.executable, **QUICK_ENVIRONMENT}
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self._children.append(child)
        return child, log

    def end(self) -> None:
        for child in self._children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    children = Processes(tmp_path)
    yield children
    children.end()


@pytest.fixture
def master(processes: Processes) -> str:
    """The address of a master with two workers."""
    daemon = (str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master")
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    _, log = processes.start("master", *daemon, *ports)
    found = wait_until(
        lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()), START_S_MAX
    )
    worker = (str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker")
    for number in range(2):
        processes.start(f"worker-{number}", *worker, *WORKER, found[1])
    wait_until(lambda: log.read_text().count("Registering worker") == 2, START_S_MAX)
    return str(found[1])


def test_an_archive_on_a_cluster_survives_the_death_of_its_driver_and_stops_when_asked(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, processes: Processes, master: str
) -> None:
    publish(nsqd, topic, orders(range(1500)))
    command = (sys.executable, "-m", "pumpline.tools.pumpline", "pipeline", "archive")
    command += ("--nsqd", addresses(nsqd), "--topic", topic, "--table", str(work / "t"))
    command += ("--master", master, "--schema", "order_id BIGINT", "--max-rows", "500")
    command += ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m")
    driver, log = processes.start("driver-1", *command, "--every", "0 seconds")
    record = work / "t" / "_spark_metadata"
    wait_until(
        lambda: (record / "0").exists() or (driver.poll() is not None and log.read_text()),
        RUN_S_MAX,
    )
    assert driver.poll() is None, log.read_text()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    publish(nsqd, topic, orders(range(1500, 1600)))
    driver, log = processes.start("driver-2", *command, "--every", "0 seconds")
    wait_until(
        lambda: driver.poll() is not None or len(order_ids(spark, work / "t")) == 1600, RUN_S_MAX
    )
    assert driver.poll() is None, log.read_text()
    driver.send_signal(signal.SIGTERM)
    wait_until(lambda: driver.poll() is not None, RUN_S_MAX)
    assert driver.poll() == 0, log.read_text()
    assert "stopped; the same command goes on from here" in log.read_text()
    assert order_ids(spark, work / "t") == list(range(1600))
