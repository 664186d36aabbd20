"""What the main programs of NSQ's tools share: flags, version, log lines, signals, exit codes.

A tool runs until its work is done, a signal stops it, or it fails. Data goes to stdout, all else to
stderr. A log line is `YYYY/MM/DD HH:MM:SS <text>`, as Go's log package writes it; warnings and
errors of the client library have their level before the text. Knows nothing of what a tool does.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Generic, NoReturn, Self, TypeVar

from pumpline.core.text import flags
from pumpline.core.text.flags import BOOL, Flag, OptionsError
from pumpline.core.text.version import tool_version_line
from pumpline.tools.daemon import read_flags
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.serving import event_loop
from pumpline.tools.standard_streams import run_with_streams

VERSION_FLAG = Flag("version", BOOL, False, "print the version and exit")

log = logging.getLogger("pumpline.tools")


class ToolFailure(Exception):
    """The tool cannot go on; the text is its last log line."""


class ToolOptions:
    """What a tool was told: a dataclass whose fields are flags (core/text/flags)."""

    __slots__ = ()
    program: ClassVar[str]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        """For tests: options without the checks of `fault`."""
        return flags.build(cls, flags.parse(flags.table(cls), argv).values, {})

    def fault(self) -> str:
        """The first thing wrong with the values, in NSQ's words; or empty."""
        return ""


Options = TypeVar("Options", bound=ToolOptions)


@dataclass(slots=True)
class Signals:
    """What signals ask for. SIGTERM and SIGINT stop; SIGHUP does, too, unless a tool says what it
    means."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    on_hangup: Callable[[], None] | None = None

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        (self.on_hangup or self.stop.set)()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[Options]):
    options: type[Options]
    examples: str
    work: Callable[[Options, Signals], Awaitable[None]]
    """Runs on the event loop and returns when all is done."""
    configure_log: Callable[[Options], None] | None = None
    """For a tool with log flags of its own."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        return (VERSION_FLAG, *flags.table(self.options))

    def main(self, argv: Sequence[str] | None = None) -> int:
        """From the command line to the exit code."""
        arguments = sys.argv[1:] if argv is None else argv
        return run_with_streams(self.options.program, lambda: self._main(arguments))

    def _main(self, arguments: Sequence[str]) -> int:
        program = self.options.program
        given = read_flags(program, self.flags, arguments, self.examples).values
        if given.pop("version", False):
            print(tool_version_line(program))
            return EXIT_OK
        log_as_go()
        try:
            options = flags.build(self.options, given, {})
            if fault := options.fault():
                raise ToolFailure(fault)
            if self.configure_log is not None:
                log.setLevel(logging.NOTSET)
                self.configure_log(options)
            with asyncio.Runner(loop_factory=event_loop()[0]) as runner:
                runner.run(self._run(options))
        except (ToolFailure, OptionsError) as failure:
            log.error("%s", failure)
            return EXIT_FAILED
        return EXIT_OK

    async def _run(self, options: Options) -> None:
        signals = Signals()
        signals.install()
        await self.work(options, signals)


class GoLogFormatter(logging.Formatter):
    """Go's log line, to the second."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(int(record.created)).strftime("%Y/%m/%d %H:%M:%S")
        is_ours = record.name.startswith(log.name)
        text = record.getMessage() if is_ours else f"{record.levelname}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{when} {text}"


def log_as_go() -> None:
    """The tools' own lines from INFO on, the libraries' from WARNING on, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(GoLogFormatter())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    log.setLevel(logging.INFO)


def fail(text: str) -> NoReturn:
    raise ToolFailure(text)
