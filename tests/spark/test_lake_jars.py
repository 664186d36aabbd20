"""Tables that archives wrote, read by Spark with Delta's and Iceberg's own jars.

There is no release of the jars for our Spark, so an older Spark reads, in a virtual environment of
its own, made by hand:

    python -m venv lake && lake/bin/pip install pyspark==4.1.1
    PUMPLINE_LAKE_PYTHON=lake/bin/python python -m pytest tests/spark/test_lake_jars.py

Spark fetches the jars by Maven's names when it starts. PUMPLINE_LAKE_JARS names a directory with
them instead.
"""

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders
from tests.kit.spark.topics import publish
from tests.spark.test_lake import archived, iceberg

PYTHON = os.environ.get("PUMPLINE_LAKE_PYTHON", "")
JARS = os.environ.get("PUMPLINE_LAKE_JARS", "")
PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.3.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(
        not PYTHON, reason="PUMPLINE_LAKE_PYTHON names no Python with a Spark that has lake jars"
    ),
]

READER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

kind, path, packages, jars = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
if jars:
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in Path(jars).glob("*.jar")))
else:
    builder = builder.config("spark.jars.packages", packages)
if kind == "delta":
    extension = "io.delta.sql.DeltaSparkSessionExtension"
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder = builder.config("spark.sql.extensions", extension)
    builder = builder.config("spark.sql.catalog.spark_catalog", catalog)
spark = builder.getOrCreate()
rows = spark.read.format(kind).load(path)
print(rows.selectExpr("count(*)", "sum(event.order_id)", "count(DISTINCT topic)").collect()[0])
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_spark_reads_the_table_by_the_format_s_own_jar(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(60)))
    archived(nsqd, topic, path, kind, "--max-rows", "6")  # ten batches: merged files, too
    place = str(path) if kind == "delta" else iceberg(path).metadata_location
    own = {"JAVA_HOME", "PATH", "HOME", "LANG"}
    environment = {name: value for name, value in os.environ.items() if name in own}
    made = subprocess.run(
        [PYTHON, "-c", READER, kind, place, PACKAGES, JARS],
        capture_output=True,
        text=True,
        env={**environment, "PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    assert "=60," in made.stdout and "=1770.0," in made.stdout, made.stdout
