"""The replies due to a client, in the order of its commands: frames, and outcomes of publishes,
which may not be known yet."""

from typing import NamedTuple

from pumpline.core.protocol import frames
from pumpline.core.protocol.errors import ProtocolError
from pumpline.log.completion import Completion

PendingReply = bytes | tuple[Completion, int, str]
"""A frame, or an outcome with its number of OKs and its verb."""


class Settled(NamedTuple):
    output: list[bytes]
    awaited: Completion | None = None  # what the rest has to wait for
    refused: bool = False  # a publish has failed: its error is the last that the client gets


def settle(replies: list[PendingReply]) -> Settled:
    """Take the replies that can be sent: all up to the first whose outcome is not known."""
    output: list[bytes] = []
    oks = 0  # in a row, up to here
    for index, reply in enumerate(replies):
        if isinstance(reply, tuple):
            completion, count, verb = reply
            if completion.succeeded:
                oks += count
                continue
        if oks:
            output.append(frames.OK * oks)
            oks = 0
        if isinstance(reply, bytes):
            output.append(reply)
        elif not completion.done:
            del replies[:index]
            return Settled(output, awaited=completion)
        else:
            replies.clear()
            error = ProtocolError(f"E_{verb}_FAILED", f"{verb} failed {completion.error}")
            output.append(frames.encode_frame(frames.ERROR, error.data))
            return Settled(output, refused=True)
    if oks:
        output.append(frames.OK * oks)
    replies.clear()
    return Settled(output)
