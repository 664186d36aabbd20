"""The nsqlookupd command."""

import sys
from collections.abc import Callable, Sequence

from pumpline.nsqlookupd.options import FLAGS, NsqlookupdOptions
from pumpline.tools.daemon import DaemonServer, Program, run
from pumpline.web.sockets import ListeningSockets

EXAMPLES = """
nsqlookupd
nsqlookupd --config=/etc/nsq/nsqlookupd.cfg --log-level=debug
nsqlookupd --tcp-address=127.0.0.1:4160 --http-address=127.0.0.1:4161
"""


def prepare(options: NsqlookupdOptions) -> Callable[[], DaemonServer]:
    sockets = ListeningSockets(options.program, options.addresses())

    def new_server() -> DaemonServer:
        from pumpline.nsqlookupd.server import Nsqlookupd

        return Nsqlookupd(options, sockets)

    return new_server


NSQLOOKUPD = Program(
    flags=FLAGS,
    options=NsqlookupdOptions,
    examples=EXAMPLES,
    prepare=prepare,
    log_name="NSQLOOKUPD",
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NSQLOOKUPD, argv)


if __name__ == "__main__":
    sys.exit(main())
