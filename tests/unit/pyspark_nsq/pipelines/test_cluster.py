"""The code that is sent to the workers of a cluster runs without pumpline's own dependencies."""

import subprocess
import sys
from pathlib import Path

from pyspark_nsq.pipelines.running.cluster import zip_code

# As in a worker that has what docs/pipelines.md asks for: modules come from the zip file alone.
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
for name in ("msgspec", "uvloop", "httptools", "rich", "aiohttp"):
    sys.modules[name] = None
import pumpline
assert pumpline.__file__.startswith(sys.argv[1])
import pyspark_nsq.source
import pyspark_nsq.reading.local
import pyspark_nsq.writing.sink
import pyspark_nsq.pipelines.json_events.events
from pumpline.cluster.node import parsed
assert parsed(b'{"a": 1}') == {"a": 1}
"""


def test_the_code_that_is_sent_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    sent = zip_code(tmp_path / "code.zip")
    command = [sys.executable, "-c", WORKER, str(sent)]
    subprocess.run(command, check=True, cwd=tmp_path)
