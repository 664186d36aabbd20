"""`pumpline deadletters`: what topics gave up on: count it, look at it, publish it again.

A letter is published again on the node that has it, to the topic it came from, with a publish
token made of its place in the log. So a command that was interrupted can be repeated: what it
published before is not published twice. Letters stay where they are.
"""

import sys
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pumpline.core.text.dates import parse_time
from pumpline.core.text.flags import BOOL, DURATION, INT, STRING, STRINGS, option
from pumpline.core.text.names import dead_letter_topic_of
from pumpline.core.text.settings import FORM_BODY
from pumpline.tools.arguments import UsageError
from pumpline.tools.cluster.figures import read_stats
from pumpline.tools.cluster.node import ClusterNode, NodeFailure
from pumpline.tools.verbs.output import Column, confirmed, shown_number, shown_time
from pumpline.tools.verbs.verb import Call, ChangeOptions, Nothing, Verb, run_verb

PAGE = 1000  # letters asked for at once
BODY_CHARS_SHOWN = 200  # of a body, in a table
BODY_KEYS = ("body", "body_base64")
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
    Column("body", "body", lambda value: str(value)[:BODY_CHARS_SHOWN]),
)
PUBLISH_COLUMNS = (
    Column("node", "node"),
    Column("topic", "topic"),
    Column("letters", "published", shown_number, is_number=True),
)


@dataclass(frozen=True, slots=True)
class Box:
    """Where one node keeps the dead letters of a topic."""

    topic: str
    letters: str  # the topic with them
    form: str


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
        rows = []
        for box in boxes(node, topic):
            offsets = offsets_of(node, box.letters)
            rows.append(
                {
                    "topic": box.topic,
                    "dead_letter_topic": box.letters,
                    "node": node.address,
                    "letters": offsets.get("end", 0) - offsets.get("first", 0),
                    "first_timestamp": offsets.get("first_timestamp", 0),
                    "form": box.form,
                }
            )
        return rows

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
        for box in boxes(node, topic):
            query = {"newest": "true", "limit": call.options.limit}
            for message in page(node, box, query, call.options.contains)["messages"]:
                rows.append({"node": node.address, **letter_of(box, message)})
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

    def selected(node: ClusterNode) -> Iterator[tuple[Box, dict[str, Any]]]:
        wanted = frozenset(options.id)
        for box in boxes(node, topic):
            for message in letters(node, box, since_ns, options.contains):
                letter = letter_of(box, message)
                if not wanted or letter["id"] in wanted or message["id"] in wanted:
                    yield box, letter

    counts = call.each(nodes, lambda node: sum(1 for _ in selected(node)))
    total = sum(counts.values())
    if not total:
        raise Nothing(f"topic {topic} has no such dead letters")
    question = f"Publish {total:,} dead letters to topic {topic} again?"
    if not confirmed(question, yes=options.yes):
        return 1

    def publish(node: ClusterNode) -> dict[str, Any]:
        count = 0
        for box, letter in selected(node):
            token = f"deadletter:{letter['log']}:{letter['letter_offset']}"
            try:
                query = {"topic": box.topic, "token": token}
                node.post("/pub", query, body_of(letter), is_repeatable=True)
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


# -- what a node has ---------------------------------------------------------------------------


def boxes(node: ClusterNode, topic: str) -> list[Box]:
    """Where a node keeps dead letters: of one topic, or of all that have any."""
    found = []
    topics = read_stats(node, topic or None).topics or ()
    names = {each.topic_name for each in topics}
    for name in sorted(names):
        if name.endswith("#ephemeral"):
            continue
        try:
            answer: Any = node.get_json("/topic/settings", {"topic": name})
        except NodeFailure as failure:
            if failure.code in ("NOT_FOUND", "TOPIC_NOT_FOUND"):  # a stock nsqd, or just deleted
                continue
            raise
        settings = answer["settings"]
        default = dead_letter_topic_of(name)
        # Consumers write dead letters also where the topic has no max_attempts.
        has_default = offsets_of(node, default) if topic else default in names
        if settings["max_attempts"] is not None or has_default:
            letters = settings["dead_letter_topic"] or default
            found.append(Box(name, letters, settings["dead_letter_form"] or "json"))
    return found


def offsets_of(node: ClusterNode, topic: str) -> dict[str, Any]:
    """Empty if there is no such topic."""
    try:
        answer: Any = node.get_json("/log/offsets", {"topic": topic})
    except NodeFailure as failure:
        if failure.code in ("TOPIC_NOT_FOUND", "INVALID_TOPIC"):
            return {}
        raise
    return dict(answer)


def page(node: ClusterNode, box: Box, query: dict[str, object], contains: str) -> dict[str, Any]:
    asked = {"topic": box.letters, **query, "contains": contains or None}
    try:
        answer: Any = node.get_json("/log/peek", asked)
    except NodeFailure as failure:
        if failure.code == "TOPIC_NOT_FOUND":  # nothing was given up yet
            return {"messages": [], "next": 0, "end": 0}
        raise
    for message in answer["messages"]:
        message["log"] = answer["log"]
    return dict(answer)


def letters(node: ClusterNode, box: Box, since_ns: int, contains: str) -> Iterator[dict[str, Any]]:
    """All letters of a box that were written at `since_ns` or later, oldest first."""
    query: dict[str, object] = {"limit": PAGE, "time": since_ns}
    while True:
        answer = page(node, box, query, contains)
        yield from answer["messages"]
        if answer["next"] >= answer["end"]:
            return
        query = {"limit": PAGE, "from": answer["next"]}


def letter_of(box: Box, message: dict[str, Any]) -> dict[str, Any]:
    """What was written, whichever form it has."""
    found: dict[str, Any] = {
        "topic": box.topic,
        "channel": "-",
        "id": message["id"],
        "attempts": None,
        "timestamp": message["timestamp"],
    }
    body: dict[str, Any] = {key: message[key] for key in BODY_KEYS if key in message}
    if box.form != FORM_BODY and isinstance(written := _json(message.get("body")), dict):
        found.update({key: written[key] for key in found if key in written})
        body = {key: written[key] for key in BODY_KEYS if key in written}
    found["letter_offset"], found["log"] = message["offset"], message["log"]
    return {**found, "body": body.get("body", ""), **body}


def body_of(letter: dict[str, Any]) -> bytes:
    if "body_base64" in letter:
        return b64decode(letter["body_base64"])
    return str(letter["body"]).encode()


def _json(text: object) -> object:
    import msgspec

    try:
        return msgspec.json.decode(str(text))
    except msgspec.MsgspecError:
        return None


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
