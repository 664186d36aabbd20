"""What a verb is, and how it runs: arguments, cluster, exit code (see `tools.arguments`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pumpline.cluster.client import ClusterClient, Outcome, unique
from pumpline.cluster.node import ClusterNode
from pumpline.cluster.options import ClusterOptions
from pumpline.cluster.stats import SeenNode, read_stats
from pumpline.core.text import flags
from pumpline.core.text.flags import BOOL, Flag, option
from pumpline.tools.arguments import CommandLine, run_command
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.verbs.output import Output, confirmed, note

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class VerbOptions(ClusterOptions):
    json: bool = option(BOOL, False, "print JSON, on a terminal, too")
    table: bool = option(BOOL, False, "print a table, in a pipe, too")


@dataclass(slots=True, kw_only=True)
class ChangeOptions(VerbOptions):
    yes: bool = option(BOOL, False, "do not ask first")


Given = TypeVar("Given", bound=VerbOptions)


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
    is_mixed: bool = False  # takes --nsqd and --lookupd together

    @property
    def flags(self) -> tuple[Flag, ...]:
        return flags.table(self.options)

    @property
    def line(self) -> CommandLine:
        return CommandLine(self.name, self.summary, self.places, self.flags, self.examples)


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
        if not nodes and found.answers:
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

    def told(self, answers: Outcome[str, T], kind: str) -> dict[str, T]:
        for address, why in answers.failures.items():
            note(f"{kind} {address}: {why}")
            self.failed = True
        return answers.answers

    def confirmed(self, question: str, *, yes: bool) -> bool:
        """Ask before something is destroyed, and say in which environment."""
        label = self.cluster.label
        return confirmed(f"{label}: {question}" if label else question, yes=yes)

    @property
    def exit_code(self) -> int:
        return EXIT_FAILED if self.failed else EXIT_OK


def run_verb(verb: Verb[Given], argv: Sequence[str] | None) -> int:
    """From the command line to the exit code."""

    def work(given: dict[str, Any], arguments: list[str]) -> int:
        options = flags.build(verb.options, given, {})
        try:
            with ClusterClient(options, is_mixed=verb.is_mixed) as cluster:
                out = Output(as_json=options.json, as_table=options.table)
                return verb.run(Call(options, arguments, cluster, out))
        except Nothing as error:
            note(f"pumpline {verb.name}: {error}")
            return EXIT_FAILED

    return run_command(verb.line, argv, work)
