"""`pumpline deadletters`: what topics gave up on: count it, look at it, publish it again.

`cluster.dead_letters` does it on each node. A command that was interrupted can be repeated: no
letter is published twice.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pumpline.cluster.dead_letters import (
    DeadLetter,
    DeadLetterTopic,
    letter_page,
    letters_on,
    letters_since,
    publish_letter,
    read_dead_letter_topics,
)
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.dates import parse_time
from pumpline.core.text.flags import BOOL, DURATION, INT, STRING, STRINGS, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.output import Column, shown_number, shown_time
from pumpline.tools.verbs.verb import Call, ChangeOptions, Nothing, Verb, run_verb

BODY_CHARS_SHOWN = 200  # of a body, in a table
ACTIONS = ("list", "show", "publish")


@dataclass(slots=True, kw_only=True)
class DeadLetterOptions(ChangeOptions):
    limit: int = option(INT, 20, "show: letters of each node, the newest first")
    contains: str = option(STRING, "", "show, publish: only letters with this text in them")
    id: list[str] = option(STRINGS, list, "publish: the letter of this message (may be repeated)")
    since: str = option(STRING, "", "publish: letters written since then, RFC 3339")
    ago_ns: int = option(DURATION, 0, "publish: letters written in the time before now")
    all: bool = option(BOOL, False, "publish: all letters")


LIST_COLUMNS = (
    Column("topic", "topic"),
    Column("dead_letter_topic", "dead letters in"),
    Column("node", "node"),
    Column("letters", "letters", shown_number, is_number=True),
    Column("first_timestamp", "since", shown_time),
    Column("form", "form"),
)
SHOW_COLUMNS = (
    Column("node", "node"),
    Column("channel", "channel"),
    Column("id", "id"),
    Column("attempts", "attempts", shown_number, is_number=True),
    Column("timestamp", "published", shown_time),
    Column("reason", "reason", is_rare=True),
    Column("body", "body", lambda value: str(value)[:BODY_CHARS_SHOWN]),
)
PUBLISH_COLUMNS = (
    Column("node", "node"),
    Column("topic", "topic"),
    Column("letters", "published", shown_number, is_number=True),
)


def run(call: Call[DeadLetterOptions]) -> int:
    action, topic = call.argument(0) or "list", call.argument(1)
    if action not in ACTIONS:
        raise UsageError(f"{action}: it is list, show or publish")
    if action == "list":
        return _list(call, topic)
    if not topic:
        raise UsageError(f"{action} needs a topic")
    return _show(call, topic) if action == "show" else _publish(call, topic)


def _list(call: Call[DeadLetterOptions], topic: str) -> int:
    def count(node: ClusterNode) -> list[dict[str, Any]]:
        return [
            {
                "topic": dlq.topic,
                "dead_letter_topic": dlq.dead_letter_topic,
                "node": node.address,
                "letters": dlq.letters,
                "first_timestamp": dlq.first_timestamp or 0,
                "form": dlq.form,
            }
            for dlq in read_dead_letter_topics(node, topic)
        ]

    found = call.each(call.nodes(), count)
    rows = sorted((row for each in found.values() for row in each), key=lambda row: row["topic"])
    call.out.rows(LIST_COLUMNS, rows, empty="no topic has dead letters")
    return call.exit_code


def _show(call: Call[DeadLetterOptions], topic: str) -> int:
    if call.options.limit < 1:
        raise UsageError("--limit is 1 or more")
    nodes, _ = call.with_topic(topic)

    def newest(node: ClusterNode) -> list[dict[str, Any]]:
        rows = []
        for dlq in read_dead_letter_topics(node, topic):
            limit, contains = call.options.limit, call.options.contains
            page = letter_page(node, dlq, limit=limit, contains=contains, newest=True)
            rows += [_row(node, dlq, letter) for letter in letters_on(dlq, page)]
        return rows

    found = call.each(nodes, newest)
    rows = [row for each in found.values() for row in each]
    call.out.rows(SHOW_COLUMNS, rows, empty=f"topic {topic} has no dead letters")
    return call.exit_code


def _publish(call: Call[DeadLetterOptions], topic: str) -> int:
    options = call.options
    if options.ago_ns < 0:
        raise UsageError("--ago is a time before now, such as 1h")
    given = [bool(options.id), bool(options.since), bool(options.ago_ns), options.all]
    if sum(given) != 1:
        raise UsageError("publish: say which, by one of --id, --since, --ago and --all")
    since_ns = _since_ns(options)
    nodes, _ = call.with_topic(topic)

    def selected(node: ClusterNode) -> Iterator[tuple[DeadLetterTopic, DeadLetter]]:
        wanted = frozenset(options.id)
        for dlq in read_dead_letter_topics(node, topic):
            for letter in letters_since(node, dlq, since_ns=since_ns, contains=options.contains):
                if not wanted or letter.origin.id in wanted or letter.id in wanted:
                    yield dlq, letter

    counts = call.each(nodes, lambda node: sum(1 for _ in selected(node)))
    total = sum(counts.values())
    if not total:
        raise Nothing(f"topic {topic} has no such dead letters")
    question = f"Publish {total:,} dead letters to topic {topic} again?"
    if not call.confirmed(question, yes=options.yes):
        return 1

    def publish(node: ClusterNode) -> dict[str, Any]:
        count = 0
        for dlq, letter in selected(node):
            try:
                publish_letter(node, dlq, letter)
            except NodeFailure as failure:
                raise NodeFailure(f"{failure}, after {count} of its letters") from None
            count += 1
        return {"node": node.address, "topic": topic, "letters": count}

    done = call.each([node for node in nodes if counts.get(node.address)], publish)
    call.out.rows(PUBLISH_COLUMNS, list(done.values()), empty="")
    return call.exit_code


def _since_ns(options: DeadLetterOptions) -> int:
    if options.ago_ns:
        return max(time.time_ns() - options.ago_ns, 0)
    try:
        return parse_time(options.since) if options.since else 0
    except ValueError as error:
        raise UsageError(f"--since {options.since}: {error}") from None


def _row(node: ClusterNode, dlq: DeadLetterTopic, letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    row: dict[str, Any] = {
        "node": node.address,
        "topic": origin.topic or dlq.topic,
        "channel": origin.channel or "-",
        "id": origin.id,
        "attempts": origin.attempts,
        "timestamp": origin.timestamp or letter.written_ns,
        "reason": origin.reason,
        "letter_offset": letter.offset,
        "log": letter.log,
        "body": origin.body or "",
    }
    if origin.body_base64 is not None:
        row["body_base64"] = origin.body_base64
    return row


VERB = Verb(
    name="deadletters",
    summary="list, show and publish again what consumers gave up on",
    places="[list | show | publish] [topic]",
    options=DeadLetterOptions,
    examples="""
        pumpline deadletters
        pumpline deadletters show orders --limit 5
        pumpline deadletters publish orders --all --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
