"""Which tests a parallel run keeps together in one worker, one after the other.

| tests | group |
|---|---|
| with a Spark session | one of PUMPLINE_TEST_SPARK_SESSIONS (1): each takes 10 s to start |
| in CONNECT | one: Spark Connect listens on a fixed port |
| in SINGLY, of a file that shares nothing: they take seconds each | each its own |
| all others | those of one file, which share daemons |

xdist's own `--dist loadgroup` writes the group into a test's id, which pytest 9.2 no longer allows.
"""

import functools
import os
import zlib
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
SINGLY = ("tests/interop/", "tests/crash/", "tests/docs/", "tests/sim/")
CONNECT = ("tests/spark/test_connect.py", "tests/spark/test_declarative.py")
SPARK_SESSIONS = int(os.environ.get("PUMPLINE_TEST_SPARK_SESSIONS") or 1)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """The method that xdist's own schedulers override, too."""
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    if path in CONNECT:
        return "connect"
    if _needs_spark(path):
        return f"spark-{zlib.crc32(nodeid.encode()) % SPARK_SESSIONS}"
    return nodeid if path.startswith(SINGLY) and not _shares(path) else path


@functools.cache
def _needs_spark(path: str) -> bool:
    """Whether any test of the file takes the session."""
    return "spark: SparkSession" in (ROOT / path).read_text()


@functools.cache
def _shares(path: str) -> bool:
    """Whether tests of the file share what takes time, which every worker would do again."""
    return '(scope="module"' in (ROOT / path).read_text()
