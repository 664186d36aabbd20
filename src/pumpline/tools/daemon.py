"""What the main programs of all daemons share: flags, config file, log, exit. `tools.serving` has
the event loop and the signals.

The log goes to stderr; `tools.log_lines` has its formats. Knows nothing of what a daemon serves.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TextIO, TypeVar

from pumpline.core.text import flags
from pumpline.core.text.flags import (
    DaemonOptions,
    Flag,
    LogFormat,
    LogLevel,
    OptionsError,
    Parsed,
)
from pumpline.core.text.lines import one_line
from pumpline.core.text.version import version_line
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pumpline.tools.log_lines import JsonFormatter, LineFormatter
from pumpline.tools.standard_streams import run_with_streams
from pumpline.web.sockets import StartupError

STDLIB_LEVELS_PER_LEVEL = 10  # logging counts DEBUG 10 to CRITICAL 50, NSQ 1 to 5
FATAL = logging.CRITICAL

log = logging.getLogger("pumpline")

Options = TypeVar("Options", bound=DaemonOptions)


class DaemonServer(Protocol):
    """A daemon's server, as `tools.serving` sees it. That is imported after the addresses are
    bound, as it takes asyncio with it."""

    async def start(self) -> None:
        """Raise StartupError if it cannot start; `close` is called in any case."""

    async def close(self) -> None: ...

    def reload(self) -> bool:
        """Read changed files again, on SIGHUP; return whether there are any to read."""


class ConfigFileError(Exception):
    """The config file cannot be read; the text is that of the FATAL log line."""


def read_flags(program: str, table: Sequence[Flag], argv: Sequence[str], examples: str) -> Parsed:
    """Parse the flags. For --help and wrong flags print the usage and exit, as Go's tools do."""
    try:
        parsed = flags.parse(table, argv)
    except flags.HelpRequested:
        print(flags.usage(program, table, examples=examples), end="")
        raise SystemExit(EXIT_OK) from None
    except flags.FlagError as error:
        text = flags.usage(program, table, examples=examples)
        meant = f": did you mean --{error.meant}?" if error.meant else ""
        # The error is repeated at the end, as the usage is longer than a screen.
        print(f"{error}\n{text}\n{error}{meant}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
    if parsed.rest:
        ignored = " ".join(parsed.rest)
        why = "a flag comes before it, and true or false after a ="
        print(f"{program}: ignored, as NSQ does: {ignored} ({why})", file=sys.stderr)
    return parsed


def read_config(path: str) -> dict[str, object]:
    """The values of a TOML file; none for an empty path."""
    if not path:
        return {}
    import tomllib  # of a start 3 ms, which most do not need

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        cause = f"open {path}: {(error.strerror or str(error)).lower()}"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        cause = f"toml: {error}"
    raise ConfigFileError(f"failed to load config file {path} - {cause}")


def warn_of_unknown_keys(table: Sequence[Flag], config: Mapping[str, object]) -> None:
    """NSQ ignores them and says nothing."""
    for key, meant in flags.unknown_keys(table, config).items():
        hint = f": did you mean {meant}?" if meant else ""
        log.warning("config file: unknown key %s is ignored%s", one_line(key), hint)


def log_to_stderr(
    formatter: logging.Formatter, level: LogLevel, *, stream: TextIO | None = None
) -> None:
    """Send all log lines to stderr: ours from `level` on, the libraries' from WARNING on."""
    # Do not collect what no log line shows: that is a third of the cost of a line.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    log.setLevel(level * STDLIB_LEVELS_PER_LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[Options]):
    flags: Sequence[Flag]
    options: type[Options]
    examples: str
    prepare: Callable[[Options], Callable[[], DaemonServer]]
    """Takes what only one process can have, as addresses, and returns what makes the server on the
    event loop. Only that imports the server, so that clients can connect soon."""
    log_name: str  # in the last log line
    kernels: str = ""  # their form, of a program that uses them

    @property
    def name(self) -> str:
        return self.options.program

    @property
    def version_line(self) -> str:
        return version_line(self.name, kernels=self.kernels)

    def log_formatter(self, chosen: LogFormat | None, prefix: str = "") -> logging.Formatter:
        """`prefix` is for text; without one it is the program's name."""
        if chosen is LogFormat.JSON:
            return JsonFormatter(self.name)
        return LineFormatter(prefix or f"[{self.name}] ")


def run(program: Program[Options], argv: Sequence[str] | None) -> int:
    """From the command line to the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_with_streams(program.name, lambda: _run(program, arguments))


def _run(program: Program[Options], arguments: Sequence[str]) -> int:
    given = read_flags(program.name, program.flags, arguments, program.examples).values
    if given.get("version"):
        print(program.version_line)
        return EXIT_OK
    log_to_stderr(program.log_formatter(given.get("log-format")), LogLevel.INFO)
    config: dict[str, object] = {}
    try:
        config = read_config(given.get("config", ""))
        options = program.options.from_sources(given, config)
    except (ConfigFileError, OptionsError) as error:
        warn_of_unknown_keys(program.flags, config)  # one of them may be the cause
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    formatter = program.log_formatter(options.log_format, options.log_prefix)
    log_to_stderr(formatter, options.log_level)
    log.info("%s", program.version_line)
    warn_of_unknown_keys(program.flags, config)
    try:
        new_server = program.prepare(options)
    except StartupError as error:
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    from pumpline.tools.serving import run_server  # here: asyncio is half of what is to be loaded

    status = run_server(program.name, new_server)
    if status == EXIT_OK:
        log.info("%s: bye", program.log_name)
    return status
