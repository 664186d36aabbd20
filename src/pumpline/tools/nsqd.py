"""The nsqd command: reads flags and config file, then hands over to the broker."""

import platform
import sys
from collections.abc import Sequence

from pumpline import NSQ_VERSION, __version__
from pumpline.broker.options import FLAGS, Options, OptionsError
from pumpline.core import kernels
from pumpline.core.flags import LogLevel
from pumpline.tools.daemon import (
    EXIT_FAILED,
    EXIT_OK,
    FATAL,
    ConfigFileError,
    log,
    log_to_stderr,
    read_config,
    read_flags,
    run_daemon,
)

EXAMPLES = """
nsqd --data-path=/var/lib/nsqd --lookupd-tcp-address=127.0.0.1:4160
nsqd --config=/etc/nsq/nsqd.cfg --log-level=debug
nsqd --tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151 --retention-time=72h
"""


def main(argv: Sequence[str] | None = None) -> int:
    given = read_flags("nsqd", FLAGS, sys.argv[1:] if argv is None else argv, EXAMPLES).values
    if given.get("version"):
        print(version_line())
        return EXIT_OK
    log_to_stderr("[nsqd] ", LogLevel.INFO)
    try:
        options = Options.from_sources(given, read_config(given.get("config", "")))
    except (ConfigFileError, OptionsError) as error:
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    log_to_stderr(options.log_prefix, options.log_level)
    log.info("%s", version_line())
    log.info("ID: %d", options.node_id)

    # Late, so that --version, --help and a wrong flag answer without loading the broker.
    from pumpline.broker.server import StartupError, serve

    return run_daemon(
        "nsqd",
        lambda signals: serve(options, signals, hangups=signals.hangups),
        startup_error=StartupError,
    )


def version_line() -> str:
    form = "compiled" if kernels.compiled else "python"
    python = platform.python_version()
    return f"nsqd v{NSQ_VERSION} (pumpline {__version__}, python {python}, kernels: {form})"


if __name__ == "__main__":
    sys.exit(main())
