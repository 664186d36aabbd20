"""What a verb is, and how it runs: arguments, cluster, exit code.

Flags may stand before, between and after the other arguments, which people expect of a verb; NSQ's
tools stop at the first argument that is no flag, and their mains do not come by here.

| exit code | when                                              |
|-----------|---------------------------------------------------|
| 0         | all that was asked for is done                    |
| 1         | a node failed, or there was nothing to do it to   |
| 2         | the command line cannot be understood             |
| 130       | Ctrl-C                                            |
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pumpline.core.text import flags
from pumpline.core.text.flags import BOOL, Flag, OptionsError, option
from pumpline.tools.cluster.cluster import Answers, ClusterClient, unique
from pumpline.tools.cluster.figures import SeenNode, read_stats
from pumpline.tools.cluster.node import ClusterNode
from pumpline.tools.cluster.options import ClusterOptions
from pumpline.tools.daemon import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pumpline.tools.verbs.output import Output, note

EXIT_INTERRUPTED = 130

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class VerbOptions(ClusterOptions):
    json: bool = option(BOOL, False, "print JSON, on a terminal, too")
    table: bool = option(BOOL, False, "print a table, in a pipe, too")


@dataclass(slots=True, kw_only=True)
class ChangeOptions(VerbOptions):
    yes: bool = option(BOOL, False, "do not ask first")


Given = TypeVar("Given", bound=VerbOptions)


class UsageError(Exception):
    """The arguments make no sense together; the text says why."""


class Nothing(Exception):
    """There is nothing to work on; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[Given]):
    name: str
    summary: str  # in one line, without a full stop
    places: str  # the arguments that are no flags, such as `<topic> [channel]`
    options: type[Given]
    examples: str
    run: "Callable[[Call[Given]], int]"

    @property
    def flags(self) -> tuple[Flag, ...]:
        return flags.table(self.options)

    @property
    def usage(self) -> str:
        places = f" {self.places}" if self.places else ""
        head = (
            f"pumpline {self.name}: {self.summary}\n\nUsage: pumpline {self.name}{places} [flags]"
        )
        return flags.usage("", self.flags, head=f"{head}\n\nFlags:", examples=self.examples)


@dataclass(slots=True)
class Call(Generic[Given]):
    """One run of a verb."""

    options: Given
    arguments: list[str]
    cluster: ClusterClient
    out: Output
    failed: bool = False

    def argument(self, index: int) -> str:
        """Empty if it was not given."""
        return self.arguments[index] if index < len(self.arguments) else ""

    def nodes(self) -> list[ClusterNode]:
        """All nsqds; nsqlookupds that fail are told."""
        found = self.cluster.discover()
        self.told(found, "nsqlookupd")
        nodes = unique(found)
        if not nodes and found.by_node:
            raise Nothing("the nsqlookupds know no nsqd")
        return nodes

    def each(self, nodes: Sequence[ClusterNode], ask: Callable[[ClusterNode], T]) -> dict[str, T]:
        """What the nodes answer; those that fail are told."""
        return self.told(self.cluster.each(nodes, ask), "nsqd")

    def stats(self, topic: str | None = None) -> dict[str, SeenNode]:
        return self.each(self.nodes(), lambda node: read_stats(node, topic))

    def with_topic(self, topic: str) -> tuple[list[ClusterNode], dict[str, SeenNode]]:
        """The nodes that have a topic, and its figures; Nothing if none has it."""
        nodes = self.nodes()
        stats = self.each(nodes, lambda node: read_stats(node, topic))
        having = {address: seen for address, seen in stats.items() if seen.topics}
        if not having:
            if stats:
                raise Nothing(f"no nsqd has a topic {topic}")
            raise Nothing("no nsqd answers")
        return [node for node in nodes if node.address in having], having

    def with_channel(
        self, topic: str, channel: str
    ) -> tuple[list[ClusterNode], dict[str, SeenNode]]:
        """The same for a channel; with figures of this channel alone."""
        nodes, stats = self.with_topic(topic)
        for seen in stats.values():
            for each in seen.topics or ():
                each.channels = [
                    one for one in each.channels if one.channel_name == channel and not one.hold
                ]
        having = {
            address: seen
            for address, seen in stats.items()
            if any(each.channels for each in seen.topics or ())
        }
        if not having:
            raise Nothing(f"topic {topic} has no channel {channel}")
        return [node for node in nodes if node.address in having], having

    def told(self, answers: Answers[T], kind: str) -> dict[str, T]:
        for address, why in answers.failures.items():
            note(f"{kind} {address}: {why}")
            self.failed = True
        return answers.by_node

    @property
    def exit_code(self) -> int:
        return EXIT_FAILED if self.failed else EXIT_OK


def run_verb(verb: Verb[Given], argv: Sequence[str] | None) -> int:
    """From the command line to the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        given, rest = read_arguments(verb.flags, arguments)
        check_places(verb.places, rest)
    except flags.HelpRequested:
        print(verb.usage, end="")
        return EXIT_OK
    except flags.FlagError as error:
        meant = f": did you mean --{error.meant}?" if error.meant else ""
        return _misused(verb, f"{error}{meant}")
    except UsageError as error:
        return _misused(verb, str(error))
    return quietly(lambda: _run(verb, flags.build(verb.options, given, {}), rest))


def _run(verb: Verb[Given], options: Given, arguments: list[str]) -> int:
    try:
        with ClusterClient(options) as cluster:
            out = Output(as_json=options.json, as_table=options.table)
            return verb.run(Call(options, arguments, cluster, out))
    except OptionsError as error:
        note(f"pumpline {verb.name}: {error}")
        return EXIT_USAGE
    except UsageError as error:
        return _misused(verb, str(error))
    except Nothing as error:
        note(f"pumpline {verb.name}: {error}")
        return EXIT_FAILED


def quietly(work: Callable[[], int]) -> int:
    """Ctrl-C, and a reader that closes the pipe, end a command without a traceback."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What Python still wants to flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def read_arguments(
    table: Sequence[Flag], argv: Sequence[str]
) -> tuple[dict[str, object], list[str]]:
    """Values by flag, and the other arguments; all after `--` are others."""
    values: dict[str, object] = {}
    others: list[str] = []
    rest = list(argv)
    while rest:
        if rest[0] == "--":
            others += rest[1:]
            break
        parsed = flags.parse(table, rest)
        for name, value in parsed.values.items():
            earlier = values.get(name)
            values[name] = [*earlier, *value] if isinstance(earlier, list) else value
        ended = len(parsed.rest) < len(rest) and rest[len(rest) - len(parsed.rest) - 1] == "--"
        if ended:
            others += parsed.rest
            break
        others += parsed.rest[:1]
        rest = parsed.rest[1:]
    return values, others


def check_places(places: str, arguments: Sequence[str]) -> None:
    """UsageError unless there are as many arguments as `places` has room for."""
    names = re.findall(r"[<\[]([^>\]]+)[>\]]", places)
    needed = places.count("<")
    if len(arguments) < needed:
        raise UsageError(f"<{names[len(arguments)]}> is missing")
    if len(arguments) > len(names) and not places.endswith("..."):
        raise UsageError(f"too many arguments: {' '.join(arguments[len(names) :])}")


def _misused(verb: Verb[Given], why: str) -> int:
    places = f" {verb.places}" if verb.places else ""
    note(f"pumpline {verb.name}: {why}")
    note(f"Usage: pumpline {verb.name}{places} [flags]; `pumpline {verb.name} --help` tells more.")
    return EXIT_USAGE
