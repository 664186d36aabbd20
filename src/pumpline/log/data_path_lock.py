"""The lock on the data directory: one nsqd at a time.

Imports next to nothing, as a start takes the lock before it loads the rest.
"""

import fcntl
import os


class DataPathError(Exception):
    """The data directory cannot be locked; the text says why."""


class DataPathLock:
    """Held from the beginning until `release`, or until the process ends, however it does."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataPathError(f"failed to lock data-path: open {path}: {reason}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            reason = (error.strerror or str(error)).lower()
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {path} - {reason} "
                "(possibly in use by another instance of nsqd)"
            ) from error

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
