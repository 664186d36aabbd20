"""The example of Spark's declarative pipelines, run by its own command, `spark-pipelines`.

Each run is a Spark of its own and takes half a minute; Hive's catalog is what outlives it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.kit.daemons import Nsqd
from tests.kit.spark.drivers import QUICK_ENVIRONMENT
from tests.kit.spark.pipelines import orders
from tests.kit.spark.topics import publish

SPEC = "examples/declarative/spark-pipeline.yml"
EXAMPLE = (Path(__file__).parents[2] / SPEC).parent
CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
RUN_S_MAX = 280.0


def run_once(spec: Path, work: Path) -> None:
    """As a user would, by the command in the docs."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_HOME": str(Path(pyspark.__file__).parent), **QUICK_ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ran = subprocess.run(
        [str(COMMAND), "run", "--spec", str(spec), *CATALOG],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]


def test_the_command_is_that_of_the_docs() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "spark.md").read_text()
    assert " ".join(("spark-pipelines run --spec", SPEC, "\\\n   ", *CATALOG)) in page


@pytest.mark.slow
@pytest.mark.e2e
def test_a_topic_is_a_streaming_table_which_the_next_run_goes_on_with(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    shutil.copytree(EXAMPLE, work / "pipeline")
    spec = work / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:4151", nsqd.http_address)
    text = text.replace("orders.topic: orders", f"orders.topic: {topic}")
    spec.write_text(text.replace("/tmp/orders-pipeline", str(work)))
    tables = work / "spark-warehouse"
    for before, count in ((0, 100), (100, 130)):
        publish(nsqd, topic, orders(range(before, count)))
        run_once(spec, work)
        rows = spark.read.parquet(str(tables / "orders"))
        assert sorted(row.order_id for row in rows.collect()) == list(range(count))
        (city,) = spark.read.parquet(str(tables / "cities")).collect()
        assert city.asDict() == {"city": "Oslo", "amount": sum(n + 0.5 for n in range(count))}
