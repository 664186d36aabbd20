"""stdin, stdout and stderr as a program finds them, and what becomes of it when they fail.

A program may be started with some of them closed. The next file or socket would then get their
number, and libuv aborts the process when it closes a connection with a number below 3.

All that goes to stdout is written by `write_some`, which never loses a byte: `print` and rich reach
it through `sys.stdout`, tools with an event loop through `tools.stdout`. stdout is never made
non-blocking: that flag belongs to the open file, which the shell and other programs have as well.
Another program may have set it, so both `read_some` and `write_some` wait where they have to.
"""

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

STDIN, STDOUT, STDERR = range(3)


class StdoutError(OSError):
    """stdout takes no more. Not a BrokenPipeError: sockets raise those, and rich exits on them."""

    @property
    def is_closed(self) -> bool:
        """Nobody reads it any more."""
        return self.errno == errno.EPIPE

    @property
    def cause(self) -> str:
        return os.strerror(self.errno or errno.EIO).lower()


class StdinFile(io.RawIOBase):
    """What is below `sys.stdin`. Without it, Python takes a non-blocking stdin that has nothing to
    read at the moment for one that has ended."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDIN

    def isatty(self) -> bool:
        return os.isatty(STDIN)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        data = read_some(STDIN, len(view))
        view[: len(data)] = data
        return len(data)


class StdoutFile(io.RawIOBase):
    """What is below `sys.stdout`. `io.BufferedWriter` writes again what a write left over."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDOUT

    def isatty(self) -> bool:
        return os.isatty(STDOUT)

    def write(self, data: "ReadableBuffer", /) -> int:
        return write_some(data)


def read_some(fd: int, size_bytes: int) -> bytes:
    """Read what there is, up to so many bytes; wait for some if need be. Empty at the end."""
    while True:
        try:
            return os.read(fd, size_bytes)
        except BlockingIOError:  # another program made it non-blocking
            _wait(fd, select.POLLIN)


def write_some(data: "ReadableBuffer") -> int:
    """Write to stdout and return how many bytes it took, at least one; wait for room if need be.
    StdoutError if it takes no more."""
    while True:
        try:
            return os.write(STDOUT, data)
        except BlockingIOError:  # another program made it non-blocking
            _wait(STDOUT, select.POLLOUT)
        except OSError as error:
            raise StdoutError(error.errno, error.strerror) from None


def _wait(fd: int, event: int) -> None:
    ready = select.poll()
    ready.register(fd, event)
    ready.poll()


def run_with_streams(name: str, work: Callable[[], int]) -> int:
    """Run a command to its exit code. Ctrl-C, and a reader that closes the pipe, end it without a
    word; a stdout that cannot be written is told in a sentence."""
    open_standard_streams()
    code = EXIT_OK
    try:
        try:
            code = work()
        except SystemExit:  # as --help does
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except StdoutError as error:
        forget_stdout()
        if not error.is_closed:
            print(f"{name}: failed to write to stdout: {error.cause}", file=sys.stderr)
            return EXIT_FAILED
    except KeyboardInterrupt:
        forget_stdout()
        return EXIT_INTERRUPTED
    return code


def open_standard_streams() -> None:
    """Put the null device where there is none. What is written to a stdout that was closed is an
    error, as it is without this: data must not vanish."""
    for fd, flag in ((STDIN, os.O_RDONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flag)  # takes the lowest free number, which is this one
    # Python has None for those that were closed when it started.
    if sys.stdin is None or sys.stdin is sys.__stdin__:  # else somebody replaced it
        encoding = getattr(sys.stdin, "encoding", None)
        errors = getattr(sys.stdin, "errors", None)
        buffered = io.BufferedReader(StdinFile())
        sys.stdin = io.TextIOWrapper(buffered, encoding=encoding, errors=errors)
    if sys.stderr is None:
        sys.stderr = os.fdopen(STDERR, "w", closefd=False)
    before = sys.stdout
    if before is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(StdoutFile()))
    elif before is sys.__stdout__ and isinstance(before, io.TextIOWrapper):  # nobody captures it
        before.flush()
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(StdoutFile()),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )


def forget_stdout() -> None:
    """Nobody reads stdout any more, or it takes no more: let the last flush go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
