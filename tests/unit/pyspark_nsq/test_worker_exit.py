"""A worker whose output Spark no longer reads ends without a trace; a user's code is told of its
own broken pipes as ever."""

import subprocess
import sys

# As PySpark's daemon does it: the main module flushes, and prints what went wrong.
WORKER = """
import os
import traceback
from importlib.machinery import ModuleSpec

__spec__ = ModuleSpec("{name}", None)

import pyspark_nsq

reader, writer = os.pipe()
os.close(reader)
output = os.fdopen(writer, "wb")
output.write(b"rows")
udf = {{"__name__": "udf", "os": os, "writer": writer}}
exec('''
def send():
    try:
        os.write(writer, b"request")
    except BrokenPipeError:
        os.environ.get("PATH")
        return "told"
''', udf)
print(udf["send"](), flush=True)
try:
    output.flush()
except Exception:
    if os.environ.get("PATH"):
        traceback.print_exc()
        os._exit(1)
"""


def ended(name: str) -> tuple[int, str, bool]:
    """The exit code, what it printed, and whether there was a trace."""
    made = subprocess.run(
        [sys.executable, "-c", WORKER.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
    )
    return made.returncode, made.stdout, "BrokenPipeError" in made.stderr


def test_a_worker_that_nobody_reads_ends_without_a_trace() -> None:
    assert ended("pyspark.daemon") == (1, "told\n", False)


def test_any_other_process_is_as_it_was() -> None:
    assert ended("somebody") == (1, "told\n", True)
