"""Sends this source's code to the workers of a cluster, which need Python, Arrow and numpy only.

With `local[*]` the workers run on this machine and use the installed packages. On a cluster
pumpline may not be installed: the packages are sent as a zip file of some hundred kilobytes.
"""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

import pumpline
import pyspark_nsq

# What the source imports. The compiled kernels are not sent; the Python ones are.
SHIPPED = (
    *("pumpline/__init__.py", "pumpline/unread.py"),
    *("pumpline/core", "pumpline/client", "pumpline/cluster", "pyspark_nsq"),
)


def ship_code(spark: SparkSession) -> None:
    """Send the source's code to every worker of this session."""
    directory = Path(tempfile.mkdtemp(prefix="pumpline-code-"))
    # Only at exit: workers fetch it from there while the session lasts.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
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
