"""`pumpline forget-node`: nsqlookupds no longer expect an nsqd that went away for good.

Readers that must be complete, as Spark's batch reads, stop while an nsqd is away that an nsqlookupd
remembers.
"""

import sys
from collections.abc import Sequence

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.tools.verbs.changes import COLUMNS
from pumpline.tools.verbs.verb import Call, Nothing, Verb, VerbOptions, run_verb

NOT_FOUND = "NODE_NOT_FOUND"


def run(call: Call[VerbOptions]) -> int:
    node = call.argument(0)
    if not call.cluster.lookupds:
        raise Nothing("say which nsqlookupds: --lookupd <host>:<port>")

    def forget(lookupd: ClusterNode) -> bool:
        """Whether it remembered the node."""
        try:
            lookupd.post("/node/forget", {"node": node}, is_repeatable=True)
        except NodeFailure as failure:
            if failure.code != NOT_FOUND:
                raise
            return False
        return True

    answers = call.told(call.cluster.each(call.cluster.lookupds, forget), "nsqlookupd")
    if answers and not any(answers.values()):
        raise Nothing(f"no nsqlookupd remembers {node} as lost")
    said = {True: "forgotten", False: "not known there"}
    rows: list[dict[str, object]] = [
        {"node": address, "ok": True, "result": said[known]} for address, known in answers.items()
    ]
    call.out.rows(COLUMNS, rows, empty="no nsqlookupd answers")
    return call.exit_code


VERB = Verb(
    name="forget-node",
    summary="stop expecting an nsqd that went away for good",
    places="<node>",
    options=VerbOptions,
    examples="""
        pumpline forget-node 10.0.0.7:4150 --lookupd 127.0.0.1:4161
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
