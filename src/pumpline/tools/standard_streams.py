"""stdin, stdout and stderr as a program finds them, and what becomes of it when they fail.

A program may be started with some of them closed. The next file or socket would then get their
number, and libuv aborts the process when it closes a connection with a number below 3.
"""

import os
import sys
from contextlib import suppress

STDIN, STDOUT, STDERR = range(3)


def open_standard_streams() -> None:
    """Put the null device where there is none. What is written to a stdout that was closed is an
    error, as it is without this: data must not vanish."""
    for fd, flag in ((STDIN, os.O_RDONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flag)  # takes the lowest free number, which is this one
    # Python has None for those that were closed when it started.
    if sys.stdin is None:
        sys.stdin = os.fdopen(STDIN, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(STDOUT, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(STDERR, "w", closefd=False)


def forget_stdout() -> None:
    """Nobody reads stdout any more, or it takes no more: let the last flush go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
