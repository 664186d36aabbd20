"""Whether the last write to the data directory succeeded: what /ping says.

A failed write makes the broker unhealthy; the next successful one makes it healthy again. Nobody
may publish to an unhealthy broker, so while it is, it tries a write of its own every second.
"""

import logging
import os
from contextlib import suppress

from pumpline.log.log import Later, Offload

_LOG = logging.getLogger(__name__)
_PROBE_S = 1.0
_PROBE_BYTES = 4096


class DiskHealth:
    def __init__(self, directory: str, *, offload: Offload, later: Later) -> None:
        self.error: str | None = None
        self.failures = 0
        self._probe_path = os.path.join(directory, ".probe")
        self._offload = offload
        self._later = later
        self._probing = False

    def __str__(self) -> str:
        return "OK" if self.error is None else f"NOK - {self.error}"

    def failed(self, error: OSError, what: str) -> str:
        """Note a failed write; returns the reason, for the reply to the client."""
        reason = (error.strerror or str(error)).lower()
        self.failures += 1
        if self.error is None:
            _LOG.error("HEALTH: failed to write %s: %s", what, reason)
        self.error = f"failed to write {what}: {reason}"
        if not self._probing:
            self._probing = True
            self._later(_PROBE_S, self._probe)
        return reason

    def succeeded(self) -> None:
        if self.error is not None:
            _LOG.info("HEALTH: writing again")
            self.error = None

    def _probe(self) -> None:
        if self.error is None:
            self._probing = False
            return
        self._offload(self._try_write, self._probed)

    def _probed(self, error: BaseException | None) -> None:
        if error is None:
            self.succeeded()
            self._probing = False
        else:
            self._later(_PROBE_S, self._probe)

    def _try_write(self) -> None:
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
