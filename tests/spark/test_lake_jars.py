"""Tables that archives wrote, read and changed by Spark with Delta's and Iceberg's own jars.

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

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import sql
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders
from tests.kit.spark.topics import publish
from tests.spark.test_lake import FORMATS, archived, asked, run_maintain

PYTHON = os.environ.get("PUMPLINE_LAKE_PYTHON", "")
JARS = os.environ.get("PUMPLINE_LAKE_JARS", "")
PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.3.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0,"
    "org.xerial:sqlite-jdbc:3.46.1.3"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(
        not PYTHON, reason="PUMPLINE_LAKE_PYTHON names no Python with a Spark that has lake jars"
    ),
]

ENGINE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

kind, path, packages, jars, *statements = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1")
if jars:
    builder = builder.config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
else:
    builder = builder.config("spark.jars.packages", packages)
if kind == "delta":
    extension = "io.delta.sql.DeltaSparkSessionExtension"
    catalogs = {"spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
else:
    extension = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    catalogs = {
        "archive": "org.apache.iceberg.spark.SparkCatalog",
        "archive.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "archive.uri": f"jdbc:sqlite:{path}/_catalog.db",
        "archive.jdbc.schema-version": "V1",
        "archive.warehouse": f"file://{path}",
    }
builder = builder.config("spark.sql.extensions", extension)
for name, value in catalogs.items():
    builder = builder.config(f"spark.sql.catalog.{name}", value)
spark = builder.getOrCreate()
for statement in statements:
    found = spark.sql(statement).collect()
print(tuple(found[0]))
"""


def by_jar(kind: str, path: Path, *statements: str) -> str:
    """What Spark with the format's own jar answers to the last of some statements on {t}."""
    table = f"delta.`{path}`" if kind == "delta" else f"archive.archive.{path.name}"
    texts = [statement.format(t=table) for statement in statements]
    own = {"JAVA_HOME", "PATH", "HOME", "LANG"}
    environment = {name: value for name, value in os.environ.items() if name in own}
    made = subprocess.run(
        [PYTHON, "-c", ENGINE, kind, str(path), PACKAGES, JARS, *texts],
        capture_output=True,
        text=True,
        env={**environment, "PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout.strip().splitlines()[-1]


@FORMATS
def test_spark_reads_the_table_by_the_format_s_own_jar(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(60)))
    archived(nsqd, topic, path, kind, "--max-rows", "6")  # ten batches: merged files, too
    totals = "SELECT count(*), sum(event.order_id), count(DISTINCT topic) FROM {t}"
    assert by_jar(kind, path, totals) == "(60, 1770.0, 1)"


MARKED = {
    "delta": "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)",
    "iceberg": "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
}
REWRITTEN = {
    "delta": "REORG TABLE {t} APPLY (PURGE)",
    "iceberg": "CALL archive.system.rewrite_data_files("
    "table => '{t}', options => map('rewrite-all', 'true'))",
}


@FORMATS
def test_rows_that_spark_marked_as_deleted_do_not_come_back(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(10)))
    archived(nsqd, topic, path, kind)
    counted = "SELECT count(*) FROM {t}"
    assert by_jar(kind, path, MARKED[kind], "DELETE FROM {t} WHERE offset = 3", counted) == "(9,)"
    count = f"SELECT count(*) AS n FROM {sql.view_name(topic)}"
    with pytest.raises(NsqError, match="still in its files"):
        asked(count, path)
    publish(nsqd, topic, orders(range(10, 15)))
    archived(nsqd, topic, path, kind, "--max-rows", "1")
    run_maintain(path)
    assert by_jar(kind, path, REWRITTEN[kind], counted) == "(14,)"
    assert asked(count, path) == [{"n": 14}]
