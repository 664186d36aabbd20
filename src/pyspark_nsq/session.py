"""A Spark session on this machine, set up for this source, and one sentence when Java is missing.

Nobody needs this module to use `format("nsq")`; it has the settings that were worth something when
measured, for tests, examples and the pipelines.
"""

import os
import re
import shutil
import subprocess
import sys

from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError

JAVA_VERSION_MIN = 17
JAVA_TIMEOUT_S = 30.0
JAVA_MISSING = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer: install a JDK or JRE (Debian and Ubuntu: apt "
    "install openjdk-17-jre-headless) or set JAVA_HOME to one"
)

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A micro-batch takes at least 200 ms with the defaults, 125 ms with these two.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


class JavaMissing(NsqError):
    """There is no Java that Spark could run on."""


def require_java() -> None:
    """JavaMissing, with what to install, unless Spark will find a Java it can run on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise JavaMissing(f"{JAVA_MISSING}.")
    said = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
    )
    found = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        version = said.stderr.splitlines()[:1] or ["nothing"]
        raise JavaMissing(f"{JAVA_MISSING}; {java} says {version[0]}.")


def main() -> None:
    """`python -m pyspark_nsq.session`: is there a Java for Spark?"""
    try:
        require_java()
    except JavaMissing as error:
        sys.exit(str(error))


def local_session(
    name: str, *, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none."""
    require_java()
    # Spark would start whatever python3 comes first in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
