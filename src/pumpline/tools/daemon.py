"""What every daemon's main does alike: flags, config file, log lines, event loop, signals, exit.

A log line is `<prefix>YYYY/MM/DD HH:MM:SS.uuuuuu <LEVEL>: <text>` on stderr, in local time, as
NSQ's are. Knows nothing of what a daemon serves.
"""

import asyncio
import logging
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TextIO

from pumpline.core import flags
from pumpline.core.flags import Flag, LogLevel, Parsed

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2

STDLIB_LEVELS_PER_LEVEL = 10  # logging counts DEBUG 10 to CRITICAL 50, NSQ 1 to 5
FATAL = logging.CRITICAL

_LEVEL_WORDS = {logging.CRITICAL: "FATAL"}

log = logging.getLogger("pumpline")


class LineFormatter(logging.Formatter):
    """NSQ's log line."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%Y/%m/%d %H:%M:%S.%f")
        level = _LEVEL_WORDS.get(record.levelno, record.levelname)
        text = f"{self.prefix}{when} {level}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class ConfigFileError(Exception):
    """The config file cannot be read; the text is that of the FATAL log line."""


def read_flags(program: str, table: Sequence[Flag], argv: Sequence[str], examples: str) -> Parsed:
    """The flags given. Asked for help, or given nonsense, says so and exits as Go tools do."""
    try:
        return flags.parse(table, argv)
    except flags.HelpRequested:
        print(flags.usage(program, table, examples=examples), end="")
        raise SystemExit(EXIT_OK) from None
    except flags.FlagError as error:
        text = flags.usage(program, table, examples=examples)
        print(f"{error}\n{text}", end="", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None


def read_config(path: str) -> dict[str, object]:
    """The values of a TOML file; none for an empty path."""
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        cause = f"open {path}: {(error.strerror or str(error)).lower()}"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        cause = f"toml: {error}"
    raise ConfigFileError(f"failed to load config file {path} - {cause}")


def log_to_stderr(prefix: str, level: LogLevel, *, stream: TextIO | None = None) -> None:
    """Send all log lines to stderr: ours from `level` on, the libraries' from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    log.setLevel(level * STDLIB_LEVELS_PER_LEVEL)


class Signals(asyncio.Event):
    """Set by SIGINT and SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.hangups: list[Callable[[], None]] = []
        """What to call on each SIGHUP, which is ignored as long as there is nothing."""


def run_daemon(
    name: str,
    serve: Callable[[Signals], Awaitable[None]],
    *,
    startup_error: type[Exception],
) -> int:
    """Run `serve` to its end and return the exit code.

    The event it is given is set by SIGINT and SIGTERM. `startup_error` is what it raises when it
    cannot begin; its text goes into one FATAL line.
    """
    loop_factory, loop_name = _event_loop()
    log.info("event loop: %s", loop_name)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_until_stopped(serve))
    except startup_error as error:
        log.log(FATAL, "%s", error)
        return EXIT_FAILED
    except Exception:
        log.log(FATAL, "%s stopped by an unexpected error", name, exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


def _event_loop() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """uvloop where it is installed: it takes a quarter of asyncio's CPU with many connections."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, "asyncio (uvloop is not installed)"
    return uvloop.new_event_loop, "uvloop"


async def _until_stopped(serve: Callable[[Signals], Awaitable[None]]) -> None:
    signals = Signals()
    loop = asyncio.get_running_loop()

    def on_stop(number: signal.Signals) -> None:
        log.info("%s received, stopping", number.name)
        signals.set()

    def on_hangup() -> None:
        log.info("SIGHUP received%s", "" if signals.hangups else ", ignored")
        for callback in signals.hangups:
            callback()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_stop, number)
    # NSQ dies of a SIGHUP with its memory unwritten; log rotation scripts send it all the same.
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    await serve(signals)
