"""`pumpline create`: make a topic, or a channel of it, on every node."""

import sys
from collections.abc import Sequence

from pumpline.cluster.node import ClusterNode
from pumpline.tools.verbs.changes import change, path
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb


def run(call: Call[VerbOptions]) -> int:
    topic, channel = call.argument(0), call.argument(1)

    def create(node: ClusterNode) -> object:
        node.post("/topic/create", {"topic": topic})
        return (
            node.post("/channel/create", {"topic": topic, "channel": channel}) if channel else None
        )

    if call.cluster.lookupds:
        where, query = path(topic, channel, "create")
        answers = call.cluster.each(call.cluster.lookupds, lambda each: each.post(where, query))
        call.told(answers, "nsqlookupd")
    change(call, call.nodes(), create, done="created")
    return call.exit_code


VERB = Verb(
    name="create",
    summary="make a topic, or a channel of it",
    places="<topic> [channel]",
    options=VerbOptions,
    examples="""
        pumpline create orders
        pumpline create orders billing
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
