"""`pumpline delete`: delete a topic or a channel, at the nsqlookupds first, then on every node.

An nsqlookupd that still knew it would tell new nsqds to create it again.
"""

import sys
from collections.abc import Sequence

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.tools.verbs.changes import change, content, named, path
from pumpline.tools.verbs.verb import Call, ChangeOptions, Verb, run_verb


def run(call: Call[ChangeOptions]) -> int:
    topic, channel = call.argument(0), call.argument(1)
    nodes, stats = call.with_channel(topic, channel) if channel else call.with_topic(topic)
    question = f"Delete {named(topic, channel)} ({content(stats, channel)})?"
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    where, query = path(topic, channel, "delete")

    def forget(lookupd: ClusterNode) -> object:
        try:
            return lookupd.post(where, query)
        except NodeFailure as failure:
            if failure.status == 404:  # it did not know it
                return None
            raise

    if call.cluster.lookupds:
        call.told(call.cluster.each(call.cluster.lookupds, forget), "nsqlookupd")
    change(call, nodes, lambda node: node.post(where, query), done="deleted")
    return call.exit_code


VERB = Verb(
    name="delete",
    summary="delete a topic with its messages, or a channel",
    places="<topic> [channel]",
    options=ChangeOptions,
    examples="""
        pumpline delete orders billing --yes
        pumpline delete orders --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
