"""`pumpline empty`: drop what waits in a topic or a channel."""

import sys
from collections.abc import Sequence

from pumpline.tools.verbs.changes import change, content, named, path
from pumpline.tools.verbs.verb import Call, ChangeOptions, Verb, run_verb


def run(call: Call[ChangeOptions]) -> int:
    topic, channel = call.argument(0), call.argument(1)
    nodes, stats = call.with_channel(topic, channel) if channel else call.with_topic(topic)
    what = named(topic, channel)
    if channel:
        question = f"Drop all messages of {what} ({content(stats, channel)})?"
    else:
        question = f"Drop what {what} keeps for its first channel ({content(stats, channel)})?"
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    where, query = path(topic, channel, "empty")
    change(call, nodes, lambda node: node.post(where, query), done="emptied")
    return call.exit_code


VERB = Verb(
    name="empty",
    summary="drop what waits in a channel, or in a topic without channels",
    places="<topic> [channel]",
    options=ChangeOptions,
    examples="""
        pumpline empty orders billing --yes
        pumpline empty orders --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
