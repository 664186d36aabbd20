"""The nsqd command."""

import sys
from collections.abc import Callable, Sequence

from pumpline.core.messages import kernels
from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import FLAGS, Options
from pumpline.tools.daemon import DaemonServer, Program, log, run

EXAMPLES = """
nsqd --data-path=/var/lib/nsqd --lookupd-tcp-address=127.0.0.1:4160
nsqd --config=/etc/nsq/nsqd.cfg --log-level=debug
nsqd --tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151 --retention-time=72h
"""


def prepare(options: Options) -> Callable[[], DaemonServer]:
    log.info("ID: %d", options.node_id)
    claim = Claim(options)

    def new_server() -> DaemonServer:
        from pumpline.nsqd.server import Server as Nsqd

        return Nsqd(options, claim)

    return new_server


NSQD = Program(
    flags=FLAGS,
    options=Options,
    examples=EXAMPLES,
    prepare=prepare,
    log_name="NSQ",
    kernels=kernels.form,
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NSQD, argv)


if __name__ == "__main__":
    sys.exit(main())
