"""What `--version` of every command prints. Who drives NSQ's programs looks for `(built w/`."""

import sys

from pumpline import NSQ_VERSION, __version__

_PYTHON = f"python {sys.version.split()[0]}"


def version_line(program: str, *more: str) -> str:
    """Of one of NSQ's programs. `more`: what else is told of how it was built."""
    built = ", ".join((f"pumpline {__version__}", _PYTHON, *more))
    return f"{program} v{NSQ_VERSION} (built w/{built})"


def own_version_line() -> str:
    """Of `pumpline`, which NSQ has not."""
    return f"pumpline v{__version__} (built w/{_PYTHON}, speaks NSQ {NSQ_VERSION})"
