"""What the main programs of all daemons share: flags, config file, log, exit. `tools.serving` has
the event loop and the signals.

A log line is `<prefix>YYYY/MM/DD HH:MM:SS.uuuuuu <LEVEL>: <text>` on stderr, in local time, as
NSQ's are. Knows nothing of what a daemon serves.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TextIO, TypeVar

from pumpline.core.text import flags
from pumpline.core.text.flags import DaemonOptions, Flag, LogLevel, OptionsError, Parsed
from pumpline.core.text.lines import Lines, escaped, one_line
from pumpline.tools.standard_streams import open_standard_streams
from pumpline.tools.version import version_line
from pumpline.web.sockets import StartupError

if TYPE_CHECKING:  # asyncio is imported after the addresses are bound
    from pumpline.tools.serving import DaemonServer

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2

STDLIB_LEVELS_PER_LEVEL = 10  # logging counts DEBUG 10 to CRITICAL 50, NSQ 1 to 5
FATAL = logging.CRITICAL

_LEVEL_WORDS = {logging.CRITICAL: "FATAL"}

log = logging.getLogger("pumpline")

Options = TypeVar("Options", bound=DaemonOptions)


class LineFormatter(logging.Formatter):
    """NSQ's log line. What clients say may be part of it: no line of ours has a control character,
    so that nobody can forge a line or command a terminal."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._second = -1
        self._start = ""  # what all lines of that second begin with

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            when = datetime.fromtimestamp(second).strftime("%Y/%m/%d %H:%M:%S")
            self._second, self._start = second, f"{self.prefix}{when}"
        level = _LEVEL_WORDS.get(record.levelno, record.levelname)
        start = f"{self._start}.{int(record.created % 1 * 1_000_000):06d} {level}: "
        if isinstance(record.msg, Lines):
            return "\n".join([start + escaped(line) for line in record.msg])
        text = start + escaped(record.getMessage())
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


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


def log_to_stderr(prefix: str, level: LogLevel, *, stream: TextIO | None = None) -> None:
    """Send all log lines to stderr: ours from `level` on, the libraries' from WARNING on."""
    # Do not collect what no log line shows: that is a third of the cost of a line.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    log.setLevel(level * STDLIB_LEVELS_PER_LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[Options]):
    flags: Sequence[Flag]
    options: type[Options]
    examples: str
    prepare: Callable[[Options], "Callable[[], DaemonServer]"]
    """Takes what only one process can have, as addresses, and returns what makes the server on the
    event loop. Only that imports the server, so that clients can connect soon."""
    log_name: str  # in the last log line
    build: tuple[str, ...] = ()  # shown with the version

    @property
    def name(self) -> str:
        return self.options.program

    def version_line(self) -> str:
        return version_line(self.name, *self.build)


def run(program: Program[Options], argv: Sequence[str] | None) -> int:
    """From the command line to the exit code."""
    open_standard_streams()
    arguments = sys.argv[1:] if argv is None else argv
    given = read_flags(program.name, program.flags, arguments, program.examples).values
    if given.get("version"):
        print(program.version_line())
        return EXIT_OK
    log_to_stderr(f"[{program.name}] ", LogLevel.INFO)
    config: dict[str, object] = {}
    try:
        config = read_config(given.get("config", ""))
        options = program.options.from_sources(given, config)
    except (ConfigFileError, OptionsError) as error:
        warn_of_unknown_keys(program.flags, config)  # one of them may be the cause
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    log_to_stderr(options.log_prefix, options.log_level)
    log.info("%s", program.version_line())
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
