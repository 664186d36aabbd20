"""Makes a Spark session with settings that suit this source, and says what to install without Java.

`format("nsq")` works in any session; tests, examples and pipelines use this one. Its settings are
those that made a difference when measured.
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
    # With it, Spark reuses a reader that has taken the filters of one query for the next one.
    "spark.sql.python.filterPushdown.enabled": "false",
    # A micro-batch takes at least 200 ms with the defaults, 125 ms with these two.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


class JavaMissing(NsqError):
    """No Java is installed, or it is too old for Spark."""


def require_java() -> None:
    """Raise JavaMissing, with what to install, unless there is a Java that Spark can use."""
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
    """`python -m pyspark_nsq.session` checks whether there is a Java for Spark."""
    try:
        require_java()
    except JavaMissing as error:
        sys.exit(str(error))


def local_session(
    name: str, *, master: str = "local[*]", settings: dict[str, str] | None = None
) -> SparkSession:
    """The session of this process; a new one if there is none yet."""
    require_java()
    # Without these, Spark starts the first python3 in PATH.
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
