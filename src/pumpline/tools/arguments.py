"""The command line of pumpline's own commands: flags anywhere among the other arguments.

People expect that of a verb. NSQ's tools stop at the first argument that is no flag; their mains do
not come by here. `tools.exit_codes` has what their exit codes mean.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pumpline.core.text import flags
from pumpline.core.text.flags import Flag, OptionsError
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pumpline.tools.standard_streams import StdoutError, run_with_streams


class UsageError(Exception):
    """The arguments make no sense together; the text says why."""


class CommandLine(NamedTuple):
    name: str
    summary: str  # in one line, without a full stop
    places: str  # the arguments that are no flags, such as `<topic> [channel]`
    flags: tuple[Flag, ...]
    examples: str

    @property
    def pattern(self) -> str:
        parts = [self.places, "[flags]"] if "--" not in self.places else ["[flags]", self.places]
        return " ".join(["pumpline", self.name, *(part for part in parts if part)])

    @property
    def usage(self) -> str:
        head = f"pumpline {self.name}: {self.summary}\n\nUsage: {self.pattern}\n\nFlags:"
        return flags.usage("", self.flags, head=head, examples=self.examples)


def run_command(
    line: CommandLine,
    argv: Sequence[str] | None,
    work: Callable[[dict[str, Any], list[str]], int],
) -> int:
    """Read the arguments and do the work with them: flag values by name, and the others."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_with_streams(f"pumpline {line.name}", lambda: _run(line, arguments, work))


def _run(
    line: CommandLine,
    arguments: list[str],
    work: Callable[[dict[str, Any], list[str]], int],
) -> int:
    try:
        given, others = read_arguments(line.flags, arguments)
        check_places(line.places, others)
        return work(given, others)
    except flags.HelpRequested:
        print(line.usage, end="")
        return EXIT_OK
    except flags.FlagError as error:
        why = f"{error}: did you mean --{error.meant}?" if error.meant else str(error)
    except UsageError as error:
        why = str(error)
    except OptionsError as error:
        print(f"pumpline {line.name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except StdoutError:
        raise
    except OSError as error:  # such as a file that a flag names
        print(f"pumpline {line.name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    more = f"Usage: {line.pattern}; `pumpline {line.name} --help` tells more."
    print(f"pumpline {line.name}: {why}\n{more}", file=sys.stderr)
    return EXIT_USAGE


def read_arguments(table: Sequence[Flag], argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by flag, and the other arguments; all after `--` are others."""
    values: dict[str, Any] = {}
    others: list[str] = []
    rest = list(argv)
    while rest:
        parsed = flags.parse(table, rest)
        for name, value in parsed.values.items():
            earlier = values.get(name)
            values[name] = [*earlier, *value] if isinstance(earlier, list) else value
        taken = len(rest) - len(parsed.rest)
        if taken and rest[taken - 1] == "--":
            return values, others + parsed.rest
        others += parsed.rest[:1]
        rest = parsed.rest[1:]
    return values, others


def check_places(places: str, arguments: Sequence[str]) -> None:
    """UsageError unless there are as many arguments as `places` has room for."""
    names = re.findall(r"[<\[]([^>\]]+)[>\]]", places)
    if len(arguments) < places.count("<"):
        raise UsageError(f"<{names[len(arguments)]}> is missing")
    if len(arguments) > len(names) and not places.endswith("..."):
        raise UsageError(f"too many arguments: {' '.join(arguments[len(names) :])}")
