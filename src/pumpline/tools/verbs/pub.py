"""`pumpline pub`: publish messages from the command line or from stdin, to one nsqd.

Messages go to the first nsqd that is healthy. They are not tried on another one after that: the
first may have taken them though its answer was lost, and they would be published twice.
"""

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pumpline.core.text.durations import NS_PER_MS
from pumpline.core.text.flags import BOOL, DURATION, STRING, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.cluster.node import ClusterNode, NodeFailure
from pumpline.tools.verbs.output import note
from pumpline.tools.verbs.verb import Call, Nothing, Verb, VerbOptions, run_verb

BODY_BYTES_MAX = 1 << 20  # of one request; a longer message goes alone

_U32 = struct.Struct(">I")


@dataclass(slots=True, kw_only=True)
class PubOptions(VerbOptions):
    defer_ns: int = option(DURATION, 0, "deliver the message after this time")
    whole: bool = option(BOOL, False, "stdin is one message, not one a line")
    token: str = option(STRING, "", "publish token: a repeat with the same is published once")


def run(call: Call[PubOptions]) -> int:
    topic, *texts = call.arguments
    bodies = [text.encode("utf-8", "surrogateescape") for text in texts]
    if not texts:
        bodies = _read_stdin(whole=call.options.whole)
    if not bodies:
        raise Nothing("there is no message: give one, or send lines to stdin")
    if (call.options.defer_ns or call.options.token) and len(bodies) > 1:
        raise UsageError("--defer and --token are for one message")
    node = _healthy(call, call.nodes())
    published = 0
    try:
        for batch in _batches(bodies):
            _publish(node, topic, batch, call.options)
            published += len(batch)
    except NodeFailure as failure:
        unsure = "" if failure.status else "; it may or may not have the next ones"
        note(f"nsqd {node.address}: {failure}, after {published} of {len(bodies)} messages{unsure}")
        return 1
    if call.out.is_table:
        count = len(bodies)
        call.out.line(f"{count} message{'s' if count != 1 else ''} published to {node.address}")
    else:
        call.out.document({"node": node.address, "topic": topic, "messages": len(bodies)})
    return call.exit_code


def _read_stdin(*, whole: bool) -> list[bytes]:
    data = sys.stdin.buffer
    if whole:
        body = data.read()
        return [body] if body else []
    return [line for each in data if (line := each.rstrip(b"\r\n"))]


def _healthy(call: Call[PubOptions], nodes: list[ClusterNode]) -> ClusterNode:
    for node in nodes:
        try:
            node.get("/ping")
            return node
        except NodeFailure as failure:
            note(f"nsqd {node.address}: {failure}")
    raise Nothing("no nsqd answers: nothing was published")


def _publish(node: ClusterNode, topic: str, bodies: list[bytes], options: PubOptions) -> None:
    if len(bodies) == 1:
        defer_ms = options.defer_ns // NS_PER_MS or None
        query = {"topic": topic, "defer": defer_ms, "token": options.token or None}
        node.post("/pub", query, bodies[0])
        return
    node.post("/mpub", {"topic": topic, "binary": "true"}, mpub_body(bodies))


def _batches(bodies: list[bytes]) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    size_bytes = 0
    for body in bodies:
        if batches[-1] and size_bytes + len(body) > BODY_BYTES_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1].append(body)
        size_bytes += len(body) + 4
    return batches


def mpub_body(bodies: list[bytes]) -> bytes:
    """The body of a binary /mpub."""
    parts = [_U32.pack(len(bodies))]
    for body in bodies:
        parts += (_U32.pack(len(body)), body)
    return b"".join(parts)


VERB = Verb(
    name="pub",
    summary="publish messages, from the command line or line by line from stdin",
    places="<topic> [message]...",
    options=PubOptions,
    examples="""
        pumpline pub orders '{"city": "Oslo"}'
        printf 'one\\ntwo\\n' | pumpline pub orders
        pumpline pub orders later --defer 10s
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
