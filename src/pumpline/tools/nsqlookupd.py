"""The nsqlookupd command: reads flags and config file, then hands over to the lookup server."""

import platform
import sys
from collections.abc import Sequence

from pumpline import NSQ_VERSION, __version__
from pumpline.core.flags import LogLevel
from pumpline.lookup.options import FLAGS, Options, OptionsError
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
nsqlookupd
nsqlookupd --config=/etc/nsq/nsqlookupd.cfg --log-level=debug
nsqlookupd --tcp-address=127.0.0.1:4160 --http-address=127.0.0.1:4161
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    given = read_flags("nsqlookupd", FLAGS, arguments, EXAMPLES).values
    if given.get("version"):
        print(version_line())
        return EXIT_OK
    log_to_stderr("[nsqlookupd] ", LogLevel.INFO)
    try:
        options = Options.from_sources(given, read_config(given.get("config", "")))
    except (ConfigFileError, OptionsError) as error:
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    log_to_stderr(options.log_prefix, options.log_level)
    log.info("%s", version_line())

    # Late, so that --version, --help and a wrong flag answer without loading the server.
    from pumpline.lookup.server import StartupError, serve

    return run_daemon("nsqlookupd", lambda stop: serve(options, stop), startup_error=StartupError)


def version_line() -> str:
    python = platform.python_version()
    return f"nsqlookupd v{NSQ_VERSION} (pumpline {__version__}, python {python})"


if __name__ == "__main__":
    sys.exit(main())
