"""`pumpline unpause`: deliver again after a pause."""

import sys
from collections.abc import Sequence

from pumpline.tools.verbs.changes import change, path
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb


def run(call: Call[VerbOptions]) -> int:
    topic, channel = call.argument(0), call.argument(1)
    nodes, _ = call.with_channel(topic, channel) if channel else call.with_topic(topic)
    where, query = path(topic, channel, "unpause")
    change(call, nodes, lambda node: node.post(where, query), done="unpaused")
    return call.exit_code


VERB = Verb(
    name="unpause",
    summary="deliver again after a pause",
    places="<topic> [channel]",
    options=VerbOptions,
    examples="""
        pumpline unpause orders
        pumpline unpause orders billing
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
