"""Lets Spark's Python workers end without a trace when Spark wants no more of them.

With a LIMIT, Spark closes the socket of a worker as soon as it has enough rows, and at times
those of other workers. The worker learns of it when it flushes: PySpark's
daemon then prints the traceback of a BrokenPipeError and ends the worker, although all went well.
Here the worker ends the same way, without the traceback. Nothing else changes: whatever else writes
to a closed pipe or socket in the worker, as a user's UDF may, gets its BrokenPipeError as before.
"""

import os
import signal
import sys
import threading
from types import FrameType

DAEMON = "pyspark.daemon"  # the main module of a worker
EXIT_CODE = 1  # as with the traceback


def exit_quietly() -> None:
    """Has an effect in workers only."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    is_worker = spec is not None and spec.name == DAEMON
    # Python ignores SIGPIPE unless somebody has chosen something else.
    if (
        is_worker
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGPIPE, _on_sigpipe)


def _on_sigpipe(_: int, frame: FrameType | None) -> None:
    """Python calls this soon after the write has failed, as a rule while the error is handled."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if isinstance(error, BrokenPipeError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    writer = frame if trace is None else trace.tb_frame
    if writer is not None and writer.f_globals is vars(sys.modules["__main__"]):
        os._exit(EXIT_CODE)
