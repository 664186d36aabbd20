"""What only one nsqd can have: its data directory and its addresses.

A start takes them first, in NSQ's order, and loads the rest of nsqd after that: clients that
connect meanwhile wait instead of being refused. Hence it imports little.
"""

import os

from pumpline.log.data_path_lock import DataPathError, DataPathLock
from pumpline.nsqd.options import Options
from pumpline.web.sockets import ListeningSockets, StartupError


class Claim:
    """StartupError if another has one of them."""

    def __init__(self, options: Options) -> None:
        try:
            self.data_path = DataPathLock(options.data_path or os.getcwd())
        except DataPathError as error:
            raise StartupError(f"failed to instantiate nsqd - {error}") from error
        try:
            self.sockets = ListeningSockets(options.program, options.addresses(), unix_allowed=True)
        except BaseException:
            self.data_path.release()
            raise

    def release(self) -> None:
        self.sockets.close()
        self.data_path.release()
