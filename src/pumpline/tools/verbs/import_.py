"""`pumpline import`: give nodes the topics, channels, settings and pauses of a document.

What differs is shown first. Topics and channels that the document does not have stay as they are;
those that it has get its settings and pauses, so a second import changes nothing.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.flags import BOOL, option
from pumpline.core.text.settings import NO_SETTINGS
from pumpline.tools.verbs.layout import (
    Layout,
    LayoutError,
    TopicLayout,
    decode_layout,
    read_layout,
)
from pumpline.tools.verbs.output import Column, note
from pumpline.tools.verbs.verb import Call, ChangeOptions, Nothing, Verb, run_verb

DOCUMENT_BYTES_MAX = 64 << 20
COLUMNS = (Column("node", "node"), Column("change", "change"), Column("result", "result"))
NEW = TopicLayout(topic="")


@dataclass(slots=True, kw_only=True)
class ImportOptions(ChangeOptions):
    dry_run: bool = option(BOOL, False, "show what would change, and change nothing")


class Step(NamedTuple):
    """One request that brings a node nearer to the document."""

    shown: str
    path: str
    query: dict[str, str]
    body: bytes = b""


def run(call: Call[ImportOptions]) -> int:
    try:
        layout = decode_layout(_read(call.argument(0)))
    except LayoutError as error:
        raise Nothing(f"{call.argument(0)}: {error}") from None
    nodes = call.nodes()
    has = call.each(nodes, read_layout)
    nodes = [node for node in nodes if node.address in has]
    steps = {node.address: list(differences(has[node.address], layout)) for node in nodes}
    for node in nodes:
        for step in steps[node.address]:
            note(f"{node.address}: {step.shown}")
    count = sum(map(len, steps.values()))
    if not count:
        note("nothing to change")
        call.out.document([])
        return call.exit_code
    if call.options.dry_run:
        call.out.rows(COLUMNS, _rows(steps, {}, "would be done"), empty="")
        return call.exit_code
    question = f"Make {count} change{'s' if count != 1 else ''}?"
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    failures = call.each(nodes, lambda node: _apply(node, steps[node.address]))
    for address, failed in failures.items():
        for shown, why in failed.items():
            note(f"nsqd {address}: {shown}: {why}")
            call.failed = True
    call.out.rows(COLUMNS, _rows(steps, failures, "done"), empty="")
    return call.exit_code


def differences(has: dict[str, TopicLayout], layout: Layout) -> Iterator[Step]:
    """What is to be done on a node, in order."""
    for wanted in layout.topics:
        name = wanted.topic
        of_topic = {"topic": name}
        now = has.get(name)
        if now is None:
            yield Step(f"create topic {name}", "/topic/create", of_topic)
            now = NEW
        names = [each for each in NO_SETTINGS.shown() if _value(wanted, each) != _value(now, each)]
        if names:
            # All of them in one request: some are valid only together.
            shown = ", ".join(
                f"{each} {_shown(_value(now, each))} -> {_shown(_value(wanted, each))}"
                for each in names
            )
            body = json.dumps({each: _value(wanted, each) for each in names}).encode()
            yield Step(f"settings of topic {name}: {shown}", "/topic/settings", of_topic, body)
        if wanted.paused != now.paused:
            action = "pause" if wanted.paused else "unpause"
            yield Step(f"{action} topic {name}", f"/topic/{action}", of_topic)
        channels = {each.channel: each for each in now.channels}
        for channel in wanted.channels:
            of_channel = {"topic": name, "channel": channel.channel}
            where = f"channel {channel.channel} of topic {name}"
            known = channels.get(channel.channel)
            if known is None:
                yield Step(f"create {where}", "/channel/create", of_channel)
            if channel.paused != (known.paused if known else False):
                action = "pause" if channel.paused else "unpause"
                yield Step(f"{action} {where}", f"/channel/{action}", of_channel)


def _value(topic: TopicLayout, setting: str) -> str | int | None:
    """As nsqd shows it: `90s` and `1m30s` are the same."""
    return NO_SETTINGS.changed(topic.settings).shown()[setting]


def _shown(value: str | int | None) -> str:
    return "none" if value is None else str(value)


def _apply(node: ClusterNode, steps: Sequence[Step]) -> dict[str, str]:
    """Do all of them; returns why those that failed did. One that fails does not stop the rest."""
    failed: dict[str, str] = {}
    for step in steps:
        try:
            node.post(step.path, step.query, step.body)
        except NodeFailure as failure:
            failed[step.shown] = str(failure)
            if not failure.status:  # no answer: it would be asked in vain for each
                left = steps[steps.index(step) + 1 :]
                failed.update((each.shown, "not tried") for each in left)
                break
    return failed


def _rows(
    steps: dict[str, list[Step]], failures: dict[str, dict[str, str]], done: str
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for address, each in steps.items():
        failed = failures.get(address, {})
        for step in each:
            why = failed.get(step.shown)
            rows.append(
                {
                    "node": address,
                    "change": step.shown,
                    "ok": why is None,
                    "result": done if why is None else why,
                }
            )
    return rows


def _read(path: str) -> bytes:
    """`-` is stdin."""
    if path == "-":
        text = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
    else:
        with open(path, "rb") as file:
            text = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(text) > DOCUMENT_BYTES_MAX:
        raise LayoutError(f"more than {DOCUMENT_BYTES_MAX} bytes")
    return text


VERB = Verb(
    name="import",
    summary="create topics and channels, and set settings and pauses, as `export` printed them",
    places="<file>",
    options=ImportOptions,
    examples="""
        pumpline import cluster.json --dry-run
        pumpline import cluster.json --yes
        pumpline export --nsqd 127.0.0.1:4151 | pumpline import - --nsqd 127.0.0.1:4251 --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
