"""Whether the data directory can be written to: what /ping says.

A failed write makes the broker unhealthy. Nobody may publish to an unhealthy broker, so while it
is, it tries every second: it is healthy again once a small file can be written, there is room for
the largest write that failed, and no write has failed since the try before. Else /ping would say
yes and no in turn while a disk has room for a small file, and none for what is published.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec

from pumpline.log.directory import PROBE
from pumpline.log.files import lacks_room
from pumpline.log.scheduling import Later, Offload

P = ParamSpec("P")

_LOG = logging.getLogger(__name__)
_PROBE_S = 1.0
_PROBE_BYTES = 4096
_ROOM_BYTES = 64 * 1024  # beside what a write needs itself: a new file, other writers


def write_with_room(
    make_room: Callable[[], bool], write: Callable[P, None], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call `write`; if there is no room for it, and some can be made, once more."""
    try:
        write(*args, **kwargs)
    except OSError as error:
        if not lacks_room(error) or not make_room():
            raise
        write(*args, **kwargs)


class DiskHealth:
    def __init__(self, directory: str, *, offload: Offload, later: Later) -> None:
        self.error: str | None = None
        self.failures = 0
        self._directory = directory
        self._probe_path = os.path.join(directory, PROBE)
        self._offload = offload
        self._later = later
        self._probing = False
        self._need_bytes = 0  # of the largest write that failed for lack of room
        self._failures_probed = 0

    @property
    def is_full(self) -> bool:
        """Whether a write failed that would have succeeded with more room."""
        return self._need_bytes > 0

    def __str__(self) -> str:
        return "OK" if self.error is None else f"NOK - {self.error}"

    def failed(self, error: OSError, what: str, *, size_bytes: int = 0) -> str:
        """Note a failed write, of that size if it is known; returns the reason, for the reply to
        the client."""
        reason = (error.strerror or str(error)).lower()
        self.failures += 1
        if self.error is None:
            _LOG.error("HEALTH: failed to write %s: %s", what, reason)
        self.error = f"failed to write {what}: {reason}"
        if lacks_room(error):
            self._need_bytes = max(self._need_bytes, size_bytes + _ROOM_BYTES)
        if not self._probing:
            self._probing = True
            self._failures_probed = self.failures
            self._later(_PROBE_S, self._probe)
        return reason

    def _probe(self) -> None:
        need_bytes = self._need_bytes
        self._offload(lambda: self._try_write(need_bytes), self._probed)

    def _probed(self, error: BaseException | None) -> None:
        failures, self._failures_probed = self._failures_probed, self.failures
        if error is not None or failures != self.failures:
            self._later(_PROBE_S, self._probe)
            return
        _LOG.info("HEALTH: writing again")
        self.error = None
        self._need_bytes = 0
        self._probing = False

    def _try_write(self, need_bytes: int) -> None:
        usage = os.statvfs(self._directory)
        blocks = usage.f_bfree if os.geteuid() == 0 else usage.f_bavail
        if blocks * usage.f_frsize < need_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            fd = os.open(self._probe_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.write(fd, bytes(_PROBE_BYTES)) < _PROBE_BYTES:
                    raise OSError("short write")
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            with suppress(OSError):
                os.unlink(self._probe_path)
