"""From what a pipeline runs into to what its user reads: a sentence and an exit code."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import sql
from pyspark_nsq.pipelines.running import command
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.spark.pipelines import orders
from tests.kit.spark.topics import publish


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NsqError("no node"), 1, "pumpline pipeline bad: no node\n"),
        (Py4JNetworkError("closed"), 1, "Spark's Java process has ended, or does not answer (clo"),
        (ConnectionRefusedError(111, "refused"), 1, "Spark's Java process has ended, or does not"),
        (KeyboardInterrupt(), 130, "pumpline pipeline bad: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ends_a_pipeline_is_told_without_a_traceback(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        raise error

    pipeline = ModuleType("pyspark_nsq.pipelines.bad")
    vars(pipeline).update(EXAMPLES="", arguments=lambda parser: None, run=run)
    assert command.main(pipeline, []) == code
    assert said in capsys.readouterr().err


def starts_spark(process: subprocess.Popen[str]) -> bool:
    """Whether it has a child that is on its way to be Spark's Java process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    with suppress(FileNotFoundError):  # one that has ended
        return any(b"SparkSubmit" in Path(f"/proc/{c}/cmdline").read_bytes() for c in children)
    return False


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_pipeline_that_is_interrupted_while_spark_starts_leaves_no_java_behind() -> None:
    asked = ["pumpline.tools.pumpline", "pipeline", "sql", "--nsqd=127.0.0.1:1", "--topic=t", "x"]
    process = subprocess.Popen(
        [sys.executable, "-m", *asked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: starts_spark(process), 60)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=240)  # until nobody has its output open
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.endswith("pumpline pipeline sql: interrupted\n")


@pytest.mark.slow
@pytest.mark.e2e
def test_a_query_that_needs_a_few_rows_of_many_ends_without_a_trace(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, orders(range(20_000)))
    view = sql.view_name(topic)
    asked = ["sql", f"SELECT event.order_id FROM {view} LIMIT 3", "--output", "json"]
    asked += ["--nsqd", nsqd.http_address, "--topic", topic, "--master", "local[2]"]
    made = subprocess.run(
        [sys.executable, "-m", "pumpline.tools.pumpline", "pipeline", *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(made.stdout.splitlines()) == 3
    assert "Traceback" not in made.stderr and "BrokenPipeError" not in made.stderr


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("| true", 0, ""),
        ("> /dev/full", 1, "pipeline sql: failed to write to stdout: no space left on device\n"),
    ],
)
def test_rows_that_cannot_be_printed_are_told_unless_nobody_reads(
    nsqd: Nsqd, topic: str, shell: str, code: int, said: str
) -> None:
    publish(nsqd, topic, orders(range(2_000)))
    view = sql.view_name(topic)
    query = f'"SELECT event.order_id FROM {view}" --output json --max-rows 2000'
    source = f"--nsqd {nsqd.http_address} --topic {topic} --master 'local[2]'"
    line = f"{sys.executable} -m pumpline.tools.pumpline pipeline sql {query} {source} {shell}"
    made = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=False
    )
    assert made.returncode == code, made.stderr
    assert made.stderr.endswith(said)
    assert "Traceback" not in made.stderr and "Broken" not in made.stderr


def test_statements_end_with_a_semicolon_at_the_end_of_a_line() -> None:
    lines = ["SELECT ';'\n", "  AS a;\n", "\n", ";\n", "  ;;\n", "SELECT 2"]
    assert list(sql.statements(iter(lines))) == ["SELECT ';'\n  AS a", "SELECT 2"]


def test_the_source_is_told_how_many_cores_there_are(spark: SparkSession) -> None:
    cores = str(spark.sparkContext.defaultParallelism)
    assert command.with_cores(spark, {"nsqd": "a:1"}) == {"nsqd": "a:1", "parallelism": cores}
    given = {"Parallelism": "7"}
    assert command.with_cores(spark, given) == given
