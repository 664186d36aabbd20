"""The line that `--version` of every command prints, and that /stats and the log begin with.

| program              | line                                                                 |
|----------------------|----------------------------------------------------------------------|
| NSQ's tools          | `nsq_tail v1.3.0`                                                    |
| nsqlookupd, nsqadmin | `nsqlookupd v1.3.0 (built w/pumpline-0.1.0-python3.11.7)`            |
| nsqd, pumpline       | `nsqd v1.3.0 (built w/pumpline-0.1.0-python3.11.7-kernels-compiled)` |

Programs that drive NSQ's commands expect the build, such as `go1.21.5` in NSQ's, to be one word.
The kernels in use are `compiled` or `python` (`core.messages.kernels`).
"""

import sys

from pumpline import NSQ_VERSION, __version__

_BUILD = f"pumpline-{__version__}-python{sys.version.split()[0]}"


def tool_version_line(program: str) -> str:
    """Of a tool that NSQ has, too: NSQ's tools do not name their build."""
    return f"{program} v{NSQ_VERSION}"


def version_line(program: str, version: str = NSQ_VERSION, *, kernels: str = "") -> str:
    """`version` is NSQ's, except for commands that NSQ does not have. `kernels` is their form, of
    programs that use them."""
    build = f"{_BUILD}-kernels-{kernels}" if kernels else _BUILD
    return f"{program} v{version} (built w/{build})"
