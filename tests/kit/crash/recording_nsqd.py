"""Runs nsqd with an fsync that keeps a record, so that a test can play a loss of power.

Each successful fsync appends a JSON line to the file named by PUMPLINE_TEST_SYNC_RECORD: the
inode, path and size of the file as of before the fsync, or the entries of a directory. While the
file named by PUMPLINE_TEST_SYNC_WAIT exists, fsync waits; while that named by
PUMPLINE_TEST_SYNC_FAULT does, it fails with EIO. While the file named by PUMPLINE_TEST_CUT_FAULT
exists, ftruncate fails with EROFS. Every fsync takes PUMPLINE_TEST_SYNC_S seconds
longer, so that a kill finds some of them under way.
"""

import errno
import json
import os
import stat
import sys
import time

RECORD_VARIABLE = "PUMPLINE_TEST_SYNC_RECORD"
WAIT_VARIABLE = "PUMPLINE_TEST_SYNC_WAIT"
FAULT_VARIABLE = "PUMPLINE_TEST_SYNC_FAULT"
CUT_FAULT_VARIABLE = "PUMPLINE_TEST_CUT_FAULT"
DELAY_VARIABLE = "PUMPLINE_TEST_SYNC_S"
POLL_S = 0.005

_fsync = os.fsync
_ftruncate = os.ftruncate


def recording_fsync(fd: int) -> None:
    path = os.readlink(f"/proc/self/fd/{fd}")
    status = os.fstat(fd)
    entry = {"path": path, "inode": status.st_ino, "size_bytes": status.st_size}
    if stat.S_ISDIR(status.st_mode):
        entry = {"path": path, "names": os.listdir(path)}
    time.sleep(float(os.environ[DELAY_VARIABLE]))
    while os.path.exists(os.environ[WAIT_VARIABLE]):
        time.sleep(POLL_S)
    if os.path.exists(os.environ[FAULT_VARIABLE]):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _fsync(fd)
    os.write(_record_fd, json.dumps(entry).encode() + b"\n")


def failing_ftruncate(fd: int, size_bytes: int) -> None:
    if os.path.exists(os.environ[CUT_FAULT_VARIABLE]):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    _ftruncate(fd, size_bytes)


if __name__ == "__main__":
    from pumpline.tools.nsqd import main

    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    _record_fd = os.open(os.environ[RECORD_VARIABLE], flags, 0o600)
    os.fsync = recording_fsync
    os.ftruncate = failing_ftruncate
    sys.exit(main())
