"""A consumer: one subscribed connection as its channel sees it, a socket with credit.

Credit is RDY minus what is in flight; a consumer whose output is backed up has none, so that a
slow socket holds back its own messages and nobody else's.
"""

from typing import TYPE_CHECKING, Protocol

from pumpline.core.messages.leases import Leases
from pumpline.nsqd.queue.topology import Locality

if TYPE_CHECKING:
    # A channel and its consumers know each other: a connection goes from one to the other.
    from pumpline.nsqd.queue.channel import Channel

Buffer = bytes | bytearray | memoryview


class ChannelError(Exception):
    """A command about a message cannot be carried out; the text is the reason in NSQ's words."""


NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNED = "client does not own message"
EXITING = "exiting"


class Outlet(Protocol):
    """The connection behind a consumer."""

    output_room_bytes: int  # what may still be sent in this tick; 0 or less: backed up

    def send_messages(self, data: Buffer) -> None: ...

    def send_last(self, data: Buffer) -> None: ...

    def close(self) -> None: ...


class ChannelConsumer:
    __slots__ = (
        "channel",
        "closing",
        "finish_count",
        "leases",
        "locality",
        "message_count",
        "msg_timeout_ns",
        "outlet",
        "queued",
        "rdy",
        "requeue_count",
        "sample_rate",
    )

    def __init__(
        self,
        channel: "Channel",
        outlet: Outlet,
        *,
        msg_timeout_ns: int,
        sample_rate: int,
        locality: Locality = Locality.GLOBAL,
    ) -> None:
        self.channel = channel
        self.outlet = outlet
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.locality = locality
        self.leases = Leases()
        self.rdy = 0
        self.queued = False  # is among the channel's ready consumers
        self.closing = False  # asked for nothing new, and cannot take that back
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def credit(self) -> int:
        if self.outlet.output_room_bytes <= 0:
            return 0
        return self.rdy - len(self.leases.deadlines)

    def stop(self) -> None:
        """Nothing new from now on."""
        self.closing = True
        self.rdy = 0
