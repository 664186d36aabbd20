"""The nsqadmin command."""

import sys
from collections.abc import Callable, Sequence

from pumpline.nsqadmin.options import FLAGS, NsqadminOptions
from pumpline.tools.daemon import DaemonServer, Program, run
from pumpline.web.sockets import ListeningSockets

EXAMPLES = """
nsqadmin --lookupd-http-address=127.0.0.1:4161
nsqadmin --nsqd-http-address=127.0.0.1:4151 --http-address=127.0.0.1:4171
nsqadmin --config=/etc/nsq/nsqadmin.cfg --admin-user=ann --admin-user=bob
"""


def prepare(options: NsqadminOptions) -> Callable[[], DaemonServer]:
    sockets = ListeningSockets(options.program, options.addresses())

    def new_server() -> DaemonServer:
        from pumpline.nsqadmin.server import Nsqadmin

        return Nsqadmin(options, sockets)

    return new_server


NSQADMIN = Program(
    flags=FLAGS,
    options=NsqadminOptions,
    examples=EXAMPLES,
    prepare=prepare,
    log_name="NSQADMIN",
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NSQADMIN, argv)


if __name__ == "__main__":
    sys.exit(main())
