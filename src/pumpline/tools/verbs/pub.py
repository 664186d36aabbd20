"""`pumpline pub`: publish messages from the command line or from stdin, to one nsqd.

Messages go to the first nsqd that is healthy. They are not tried on another one after that: the
first may have taken them though its answer was lost, and they would be published twice.
"""

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.durations import NS_PER_MS
from pumpline.core.text.flags import BOOL, DURATION, STRING, option
from pumpline.tools.arguments import UsageError
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
    options = call.options
    bodies: Iterator[bytes] = (text.encode("utf-8", "surrogateescape") for text in texts)
    if not texts:
        bodies = _read_stdin(whole=options.whole)
    if options.defer_ns < 0:
        raise UsageError("--defer is a time from now on, such as 10s")
    if options.defer_ns or options.token:
        some = list(islice(bodies, 2))
        if len(some) > 1:
            raise UsageError("--defer and --token are for one message")
        bodies = iter(some)
    batches = _batches(bodies)
    first_batch = next(batches, None)
    if first_batch is None:
        raise Nothing("there is no message: give one, or send lines to stdin")
    node = _healthy(call, call.nodes())
    if options.token and not _knows_tokens(node, topic):
        raise Nothing(f"nsqd {node.address} knows no publish tokens: it is a stock nsqd")
    published = 0
    try:
        for batch in chain([first_batch], batches):
            _publish(node, topic, batch, options)
            published += len(batch)
    except NodeFailure as failure:
        unsure = "" if failure.status else "; it may or may not have the next ones"
        note(f"nsqd {node.address}: {failure}, after {published} messages{unsure}")
        return 1
    if call.out.is_table:
        counted = f"{published} message{'s' if published != 1 else ''}"
        call.out.line(f"{counted} published to {node.address}")
    else:
        call.out.document({"node": node.address, "topic": topic, "messages": published})
    return call.exit_code


def _read_stdin(*, whole: bool) -> Iterator[bytes]:
    data = sys.stdin.buffer
    if not whole:
        yield from (line for each in data if (line := each.rstrip(b"\r\n")))
    elif body := data.read():
        yield body


def _healthy(call: Call[PubOptions], nodes: list[ClusterNode]) -> ClusterNode:
    for node in nodes:
        try:
            node.get("/ping")
            return node
        except NodeFailure as failure:
            note(f"nsqd {node.address}: {failure}")
    raise Nothing("no nsqd is healthy: nothing was published")


def _publish(node: ClusterNode, topic: str, bodies: list[bytes], options: PubOptions) -> None:
    if len(bodies) == 1:
        defer_ms = options.defer_ns // NS_PER_MS or None
        query = {"topic": topic, "defer": defer_ms, "token": options.token or None}
        node.post("/pub", query, bodies[0])
        return
    node.post("/mpub", {"topic": topic, "binary": "true"}, mpub_body(bodies))


def _knows_tokens(node: ClusterNode, topic: str) -> bool:
    try:
        node.get("/log/offsets", {"topic": topic})
    except NodeFailure as failure:
        return failure.code != "NOT_FOUND"
    return True


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Input of any length is published as it is read."""
    batch: list[bytes] = []
    size_bytes = 0
    for body in bodies:
        if batch and size_bytes + len(body) > BODY_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
        batch.append(body)
        size_bytes += len(body) + 4
    if batch:
        yield batch


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
