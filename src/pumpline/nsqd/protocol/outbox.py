"""What is to be sent to one client: replies in the order of its commands, then messages.

A reply may be the outcome of a publish, which is known when the topic has committed; replies after
it wait for it. Output is collected during a tick and written once, at its end, unless it is known
before that no more will come. A client that does not read is noticed by the transport's water
marks: then it has no room for messages until the socket drains.

Knows the tick, the transport and outcomes; must not know commands or channels.
"""

import asyncio
from typing import TYPE_CHECKING

from pumpline.core.protocol import frames
from pumpline.log.completion import Completion
from pumpline.nsqd.protocol.phase import GONE, HANDSHAKE, PLAIN
from pumpline.nsqd.protocol.replies import PendingReply, settle
from pumpline.nsqd.queue.consumer import Buffer
from pumpline.nsqd.queue.tick import Tick

if TYPE_CHECKING:  # a connection makes its own
    from pumpline.nsqd.protocol.connection import Connection

OUTPUT_BYTES_MAX = 512 * 1024  # messages a consumer is given in one tick


class Outbox:
    __slots__ = (
        "_messages",
        "_replies",
        "_tick",
        "_transport",
        "awaits_outcome",
        "blocked",
        "output_room_bytes",
        "owner",
    )

    def __init__(self, owner: "Connection", tick: Tick, transport: asyncio.Transport) -> None:
        self.owner = owner
        self.output_room_bytes = OUTPUT_BYTES_MAX
        self.blocked = False  # the transport's buffer is full
        self._tick = tick
        self._transport = transport
        self._replies: list[PendingReply] = []
        self._messages: list[Buffer] = []
        self.awaits_outcome = False  # of the first publish among the replies

    @property
    def owes_replies(self) -> bool:
        return bool(self._replies)

    # -- what is to be sent -------------------------------------------------------------------

    def reply(self, frame: bytes) -> None:
        self._replies.append(frame)
        self._tick.write(self)
        if self.blocked:
            self.owner.set_reading()

    def reply_last(self, frame: bytes) -> None:
        """An error frame, after which the connection closes."""
        self._replies.append(frame)
        self.finish()

    def reply_published(self, topic: str, completion: Completion, count: int, verb: str) -> None:
        """`count` messages were published: answer when the outcome is known.

        An MPUB gets one answer, a run of PUBs one each.
        """
        self._reply_outcome(completion, 1 if verb == "MPUB" else count, verb)
        self.owner.published.add(topic, count)

    def reply_run(self, completion: Completion, count: int, lines: list[bytes]) -> None:
        """Messages were published by `count` PUBs, or MPUBs, with these lines, one for each
        message: answer when the outcome is known."""
        verb = "PUB" if lines[0].startswith(b"P") else "MPUB"
        self._reply_outcome(completion, count, verb)
        self.owner.published.add_lines(lines)

    def reply_repeated(self, completion: Completion, verb: str) -> None:
        """A publish was repeated, and nothing was published: answer with the first one's outcome,
        which may be known."""
        if not completion.done:
            self._reply_outcome(completion, 1, verb)
            return
        self._replies.append((completion, 1, verb))
        self._tick.write(self)
        if self.blocked:
            self.owner.set_reading()

    def _reply_outcome(self, completion: Completion, count: int, verb: str) -> None:
        """`count` OKs, or an error, when the outcome of a publish is known."""
        if not self._replies:
            self.awaits_outcome = True
            completion.when_done(self._outcome_known)
        self._replies.append((completion, count, verb))

    def send_messages(self, data: Buffer) -> None:
        self._messages.append(data)
        self.output_room_bytes -= len(data)
        self._tick.write(self)

    def send_last(self, data: Buffer) -> None:
        """Messages after which this tick has no more: they are written at once, unless something
        has to go before them."""
        if self._messages or self._replies or self.owner.phase is not PLAIN:
            self.send_messages(data)
        else:
            self._transport.write(data)

    # -- sending ------------------------------------------------------------------------------

    def flush(self) -> None:
        """The connection's part of a tick: one write of all there is."""
        owner = self.owner
        if owner.phase is HANDSHAKE or owner.phase is GONE:
            return  # called again when the handshake is done
        messages = self._messages
        replies: list[bytes] = []
        if self._replies:
            # Commands were parsed before anything was shared: their replies come first.
            settled = settle(self._replies)
            replies = settled.output
            if settled.refused:
                owner.refuse()
            elif settled.awaited is not None and not self.awaits_outcome:
                self.awaits_outcome = True
                settled.awaited.when_done(self._outcome_known)
        if (replies or messages) and not self._transport.is_closing():
            self._messages = []
            packing = owner.packing
            if packing is not None:
                packing.write(replies, messages)
            elif len(replies) + len(messages) == 1:
                self._transport.write(replies[0] if replies else messages[0])
            else:
                self._transport.writelines([*replies, *messages])
        if owner.phase is not PLAIN and owner.sent():
            return
        if not self.blocked:
            was_full = self.output_room_bytes <= 0
            self.output_room_bytes = OUTPUT_BYTES_MAX
            if was_full:
                owner.offer()

    def _outcome_known(self) -> None:
        self.awaits_outcome = False
        self.owner.answered()
        replies = self._replies
        if len(replies) == 1 and not self._messages and self.owner.phase is PLAIN:
            reply = replies[0]
            if isinstance(reply, tuple) and reply[0].succeeded:
                replies.clear()
                self._transport.write(frames.OK * reply[1])
                return
        if replies:
            self._tick.write(self)  # other topics of this tick may have outcomes for it, too

    # -- the socket ---------------------------------------------------------------------------

    def block(self) -> None:
        """The transport takes no more for now."""
        self.blocked = True
        self.output_room_bytes = 0

    def unblock(self) -> None:
        self.blocked = False

    def resume(self) -> None:
        """There is room again, and nothing ends."""
        self.output_room_bytes = OUTPUT_BYTES_MAX
        self.owner.offer()
        if self._messages or self._replies:
            self._tick.write(self)

    def send_waiting(self) -> None:
        """Send the frames that waited, at the end of this tick."""
        self._tick.write(self)

    def finish(self) -> None:
        """No more messages; send the replies that are due."""
        self.output_room_bytes = 0
        self._tick.write(self)

    def drop_replies(self) -> None:
        self._replies.clear()

    def clear(self) -> None:
        """The connection is gone."""
        self._messages.clear()
        self._replies.clear()

    def close(self) -> None:
        self.owner.close()
