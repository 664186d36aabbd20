"""This source's code for the workers of a cluster, so that they need only Python, Arrow and numpy.

On `local[*]` the workers are on this machine and find what is installed. On a cluster they may have
nothing of ours: the packages go along as a zip file of some hundred kilobytes.
"""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

import pumpline
import pyspark_nsq

# As little as the source imports; the compiled kernels stay here, their plain twins go.
SHIPPED = ("pumpline/__init__.py", "pumpline/core", "pumpline/client", "pyspark_nsq")


def ship_code(spark: SparkSession) -> None:
    """Gives every worker of this session the source's code."""
    directory = Path(tempfile.mkdtemp(prefix="pumpline-code-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # workers fetch it from there
    spark.sparkContext.addPyFile(str(zip_code(directory / "pumpline_code.zip")))


def zip_code(target: Path) -> Path:
    roots = {Path(pumpline.__file__).parent.parent, Path(pyspark_nsq.__file__).parent.parent}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in sorted(roots):
            for name in SHIPPED:
                path = root / name
                found = [path] if path.is_file() else sorted(path.rglob("*.py"))
                for file in found:
                    archive.write(file, str(file.relative_to(root)))
    return target
