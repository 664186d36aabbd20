"""The line that `--version` of every command prints, and that /stats and the log begin with.

`nsqd v1.3.0 (built w/pumpline-0.1.0-python3.11.7)`: programs that drive NSQ's commands expect the
build, such as `go1.21.5` in NSQ's, to be one word.
"""

import sys

from pumpline import NSQ_VERSION, __version__

_BUILD = f"pumpline-{__version__}-python{sys.version.split()[0]}"


def version_line(program: str, version: str = NSQ_VERSION) -> str:
    """`version` is NSQ's, except for commands that NSQ does not have."""
    return f"{program} v{version} (built w/{_BUILD})"
