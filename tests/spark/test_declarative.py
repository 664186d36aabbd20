"""The example of Spark's declarative pipelines, run by its own command, `spark-pipelines`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from daemons import Nsqd
from pyspark.sql import SparkSession

from .pipelines import orders
from .topics import publish

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
RUN_S_MAX = 250.0


@pytest.mark.slow
def test_a_topic_is_a_streaming_table_of_a_declarative_pipeline(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(100)))
    shutil.copytree(EXAMPLE, work / "pipeline")
    spec = work / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:4151", nsqd.http_address)
    text = text.replace("orders.topic: orders", f"orders.topic: {topic}")
    spec.write_text(text.replace("/tmp/orders-pipeline", str(work)))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ran = subprocess.run(
        [str(COMMAND), "run", "--spec", str(spec)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    tables = work / "spark-warehouse"
    rows = spark.read.parquet(str(tables / "orders"))
    assert sorted(row.order_id for row in rows.collect()) == list(range(100))
    (city,) = spark.read.parquet(str(tables / "cities")).collect()
    assert city.asDict() == {"city": "Oslo", "amount": sum(n + 0.5 for n in range(100))}
