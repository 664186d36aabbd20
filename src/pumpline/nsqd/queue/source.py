"""What a channel sees of its topic, and what the parts of a channel see of the channel.

A topic makes its channels and a channel its parts, so neither can be imported from below.
"""

from typing import TYPE_CHECKING, Protocol

from pumpline.core.messages.delivery import Delivery
from pumpline.core.text.settings import TopicSettings
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.disk import Disk

if TYPE_CHECKING:  # it knows the backlog, which knows channels
    from pumpline.nsqd.queue.publishing import Publishing


class DeadLetterTopic(Protocol):
    """A topic that dead letters are published to."""

    @property
    def publishing(self) -> "Publishing": ...

    @property
    def log(self) -> Log | Ring: ...


class Source(Protocol):
    """A topic, as its channels see it."""

    name: str
    options: Options
    tick: Tick
    disk: Disk
    log: Log | Ring
    settings: TopicSettings
    ttl_ns: int  # 0: messages do not get too old
    attempts_max: int  # 0: no dead letters
    exiting: bool

    @property
    def pumped(self) -> int:
        """Channels may read the log up to here."""

    def follow(self) -> None:
        """A channel has its first consumer, or none any more."""

    def resume(self) -> None:
        """A channel that waited to be served is."""

    def delete_channel(self, name: str) -> object: ...

    def dead_letter_topic(self) -> DeadLetterTopic:
        """Where dead letters go; OSError when it cannot be created."""


class SourceReader(Protocol):
    """A channel, as its parts see it."""

    name: str
    topic: Source
    delivery: Delivery
    exiting: bool
    dropped_count: int

    def note_change(self) -> None:
        """The delivery state differs from the cursor file."""

    def announce(self) -> None:
        """Schedule `share` if there are messages and consumers with credit."""
