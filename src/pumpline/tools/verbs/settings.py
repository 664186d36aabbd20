"""`pumpline settings`: the settings of a topic, shown or changed on every node that has it."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from pumpline.cluster.node import ClusterNode
from pumpline.core.text.settings import NO_SETTINGS, SettingsError
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.output import Column
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb

NAMES = tuple(NO_SETTINGS.shown())


def run(call: Call[VerbOptions]) -> int:
    topic, *pairs = call.arguments
    changes = dict(_pair(text) for text in pairs)
    nodes, _ = call.with_topic(topic)
    body = json.dumps(changes).encode()

    def ask(node: ClusterNode) -> dict[str, Any]:
        if changes:
            answer: Any = node.post_json("/topic/settings", {"topic": topic}, body)
        else:
            answer = node.get_json("/topic/settings", {"topic": topic})
        return dict(answer)

    answers = call.each(nodes, ask)
    rows = [{"node": address, **answer} for address, answer in answers.items()]
    if not call.out.is_table:
        call.out.document(rows)
        return call.exit_code
    columns = [Column("setting", "setting")]
    columns += [Column(row["node"], row["node"], _shown) for row in rows]
    lines = [
        {"setting": name, **{row["node"]: row["settings"].get(name) for row in rows}}
        for name in NAMES
    ]
    if rows:
        call.out.rows(columns, lines, empty="")
    return call.exit_code


def _pair(text: str) -> tuple[str, object]:
    """name=value as JSON has it; an empty value makes a setting absent."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text}: write <setting>=<value>, or <setting>= for none")
    parsed: object = int(value) if value.isascii() and value.isdigit() else value or None
    try:
        NO_SETTINGS.changed({name: parsed})
    except SettingsError as error:
        raise UsageError(str(error)) from None
    return name, parsed


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


VERB = Verb(
    name="settings",
    summary="show the settings of a topic, or change them",
    places="<topic> [setting=value]...",
    options=VerbOptions,
    examples="""
        pumpline settings orders
        pumpline settings orders message_ttl=24h max_attempts=5
        pumpline settings orders message_ttl=
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
