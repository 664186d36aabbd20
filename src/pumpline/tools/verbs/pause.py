"""`pumpline pause`: stop delivering new messages of a topic or channel."""

import sys
from collections.abc import Sequence

from pumpline.tools.verbs.changes import change, path
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb


def run(call: Call[VerbOptions]) -> int:
    topic, channel = call.argument(0), call.argument(1)
    nodes, _ = call.with_channel(topic, channel) if channel else call.with_topic(topic)
    where, query = path(topic, channel, "pause")
    change(call, nodes, lambda node: node.post(where, query), done="paused")
    return call.exit_code


VERB = Verb(
    name="pause",
    summary="stop delivering new messages of a topic or channel",
    places="<topic> [channel]",
    options=VerbOptions,
    examples="""
        pumpline pause orders
        pumpline pause orders billing
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
