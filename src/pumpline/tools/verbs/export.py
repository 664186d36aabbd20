"""`pumpline export`: topics, channels, settings and pauses of a cluster, as JSON on stdout."""

import json
import sys
from collections.abc import Sequence

import msgspec

from pumpline.tools.verbs.layout import LayoutError, merged, read_layout
from pumpline.tools.verbs.verb import Call, Nothing, Verb, VerbOptions, run_verb


def run(call: Call[VerbOptions]) -> int:
    by_node = call.each(call.nodes(), read_layout)
    if call.failed:
        raise Nothing("nothing is exported: a node is missing")
    try:
        layout = merged(by_node)
    except LayoutError as error:
        raise Nothing(str(error)) from None
    call.out.line(json.dumps(msgspec.to_builtins(layout), indent=2, ensure_ascii=False))
    return call.exit_code


VERB = Verb(
    name="export",
    summary="print topics, channels, settings and pauses as JSON, for `import`",
    places="",
    options=VerbOptions,
    examples="""
        pumpline export
        pumpline export --lookupd 127.0.0.1:4161
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
