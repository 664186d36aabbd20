"""The nsqlookupd command."""

import sys
from collections.abc import Sequence

from pumpline.nsqlookupd.options import FLAGS, NsqlookupdOptions
from pumpline.tools.daemon import DaemonServer, Program, run

EXAMPLES = """
nsqlookupd
nsqlookupd --config=/etc/nsq/nsqlookupd.cfg --log-level=debug
nsqlookupd --tcp-address=127.0.0.1:4160 --http-address=127.0.0.1:4161
"""


def new_server(options: NsqlookupdOptions) -> DaemonServer:
    from pumpline.nsqlookupd.server import Nsqlookupd

    return Nsqlookupd(options)


NSQLOOKUPD = Program(
    flags=FLAGS,
    options=NsqlookupdOptions,
    examples=EXAMPLES,
    new_server=new_server,
    log_name="NSQLOOKUPD",
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NSQLOOKUPD, argv)


if __name__ == "__main__":
    sys.exit(main())
