"""A connection to an nsqlookupd without its socket: what to say, and what replies mean. Pure.

    nsqd      := "  V1" "IDENTIFY\\n" u32 size · JSON  command*
    command   := "PING\\n" | ("REGISTER" | "UNREGISTER") " " topic [" " channel] "\\n"
    nsqlookupd:= (u32 size · data)*        JSON for IDENTIFY, else OK; anything else ends it

There is no queue of commands: the session knows what it has registered and which topics may differ
from that, and says the difference when there is room. However fast topics come and go, and however
slow the other side is, it holds no more than the names that exist or are registered.
"""

from collections.abc import Callable, Collection, Iterable

import msgspec

from pumpline.core.protocol.frames import MAGIC_V1
from pumpline.core.text.lines import one_line
from pumpline.core.text.names import is_ephemeral

UNANSWERED_MAX = 64  # commands; so many that a round trip each does not count, few enough to share
PING = "PING"

_SIZE_BYTES = 4
_OK = b"OK"

ChannelsOf = Callable[[str], Collection[str] | None]
"""The channels of a topic as of now; None if there is no such topic."""


class SessionError(Exception):
    """The other side does not speak the protocol, or refuses; the connection is of no more use."""


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What nsqd says of itself; the keys are sent in this order."""

    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    topology_region: str = ""
    topology_zone: str = ""
    version: str = ""


class About(msgspec.Struct, frozen=True):
    """What an nsqlookupd says of itself."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""


class Session:
    def __init__(
        self, topics: Iterable[str], channels_of: ChannelsOf, *, reply_bytes_max: int
    ) -> None:
        """`topics` are those there are at the moment; `changed` tells of others."""
        self.about: About | None = None  # until it has answered
        self.unanswered = 0  # commands
        self._channels_of = channels_of
        self._reply_bytes_max = reply_bytes_max
        self._received = bytearray()
        self._ping_due = False
        self._registered: dict[str, set[str]] = {}
        # Topics to look at, in order, and whether they were gone in the meantime.
        self._due: dict[str, bool] = dict.fromkeys(topics, False)

    @property
    def settled(self) -> bool:
        """Everything has been said, and answered."""
        return not self._due and not self.unanswered

    @property
    def registered_count(self) -> int:
        """Topics."""
        return len(self._registered)

    # -- what to say --------------------------------------------------------------------------

    def begin(self, identity: Identity) -> bytes:
        body = msgspec.json.encode(identity)
        self.unanswered = 1
        return b"%bIDENTIFY\n%b%b" % (MAGIC_V1, len(body).to_bytes(_SIZE_BYTES), body)

    def changed(self, topic: str) -> None:
        """The topic, or a channel of it, came or went."""
        gone = self._channels_of(topic) is None
        if gone and topic not in self._registered:
            self._due.pop(topic, None)
        else:
            self._due[topic] = gone or self._due.get(topic, False)

    def ping(self) -> None:
        """Say that we live; once, however often it is asked for before there is room."""
        self._ping_due = True

    def retire(self) -> None:
        """Take back ephemeral names; the end of the connection takes back all others. Without
        their own lines, NSQ's nsqlookupd would keep ephemeral names. Lasting topics are not taken
        back: nsqlookupd could not tell a node that stops from one whose topics were deleted."""
        lasting = {
            topic: {name for name in channels if not is_ephemeral(name)}
            for topic, channels in self._registered.items()
            if not is_ephemeral(topic)
        }
        self._channels_of = lasting.get
        self._due = {
            topic: False
            for topic, channels in self._registered.items()
            if channels != lasting.get(topic)
        }

    def commands(self) -> list[str]:
        """What to send now, line by line without the ends; call it again after replies."""
        lines: list[str] = []
        if self.about is None:
            return lines
        if self._ping_due and self.unanswered < UNANSWERED_MAX:
            self._ping_due = False
            lines.append(PING)
        # The last topic may go over the limit: it is said as a whole.
        while self._due and self.unanswered + len(lines) < UNANSWERED_MAX:
            topic = next(iter(self._due))
            lines += self._difference(topic, gone_meanwhile=self._due.pop(topic))
        self.unanswered += len(lines)
        return lines

    def _difference(self, topic: str, *, gone_meanwhile: bool) -> list[str]:
        lines = []
        channels = self._channels_of(topic)
        if gone_meanwhile or channels is None:
            # The topic takes its channels along; but only their own lines forget ephemeral ones.
            had = self._registered.pop(topic, None)
            if had is not None:
                lines += [f"UNREGISTER {topic} {name}" for name in had if is_ephemeral(name)]
                lines.append(f"UNREGISTER {topic}")
        if channels is not None:
            known = self._registered.get(topic)
            if known is None:
                known = self._registered[topic] = set()
                if not channels:
                    lines.append(f"REGISTER {topic}")
            wanted = set(channels)
            lines += [f"UNREGISTER {topic} {name}" for name in sorted(known - wanted)]
            lines += [f"REGISTER {topic} {name}" for name in sorted(wanted - known)]
            self._registered[topic] = wanted
        return lines

    # -- what is answered ---------------------------------------------------------------------

    def receive(self, data: bytes) -> int:
        """Take in what came; returns how many commands are answered by it. SessionError ends it."""
        received = self._received
        received += data
        count = 0
        while len(received) >= _SIZE_BYTES:
            size = int.from_bytes(received[:_SIZE_BYTES], signed=True)
            if not 0 <= size <= self._reply_bytes_max:
                raise SessionError(f"a reply of {size} bytes")
            end = _SIZE_BYTES + size
            if len(received) < end:
                break
            self._on_reply(bytes(received[_SIZE_BYTES:end]))
            del received[:end]
            count += 1
        return count

    def _on_reply(self, reply: bytes) -> None:
        if not self.unanswered:
            raise SessionError(f"answered what was not asked: {_shown(reply)}")
        self.unanswered -= 1
        if self.about is not None:
            if reply != _OK:
                raise SessionError(_shown(reply))
            return
        try:
            self.about = msgspec.json.decode(reply, type=About)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise SessionError(f"answered IDENTIFY with {_shown(reply)}") from None


def _shown(reply: bytes) -> str:
    return one_line(reply.decode("utf-8", "surrogateescape"))
