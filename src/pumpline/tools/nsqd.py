"""The nsqd command."""

import sys
from collections.abc import Sequence

from pumpline.core.messages import kernels
from pumpline.nsqd.options import FLAGS, Options
from pumpline.tools.daemon import DaemonServer, Program, log, run

EXAMPLES = """
nsqd --data-path=/var/lib/nsqd --lookupd-tcp-address=127.0.0.1:4160
nsqd --config=/etc/nsq/nsqd.cfg --log-level=debug
nsqd --tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151 --retention-time=72h
"""


def new_server(options: Options) -> DaemonServer:
    from pumpline.nsqd.server import Server as Nsqd

    log.info("ID: %d", options.node_id)
    return Nsqd(options)


NSQD = Program(
    flags=FLAGS,
    options=Options,
    examples=EXAMPLES,
    new_server=new_server,
    log_name="NSQ",
    build=f", kernels: {'compiled' if kernels.compiled else 'python'}",
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NSQD, argv)


if __name__ == "__main__":
    sys.exit(main())
