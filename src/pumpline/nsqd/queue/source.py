"""What a channel sees of its topic, and what the parts of a channel see of the channel.

A topic makes its channels and a channel its parts, so neither can be imported from below.
"""

from typing import Protocol

from pumpline.core.messages.batches import Builder
from pumpline.core.messages.delivery import Delivery
from pumpline.core.text.settings import TopicSettings
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.group_commit import GroupCommit
from pumpline.nsqd.queue.intake import TopicIntake
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.disk import Disk


class Letterbox(Protocol):
    """A topic that dead letters are published to."""

    @property
    def intake(self) -> TopicIntake: ...

    @property
    def group_commit(self) -> GroupCommit: ...


class Source(Protocol):
    """A topic, as its channels see it."""

    name: str
    options: Options
    tick: Tick
    disk: Disk
    log: Log | Ring
    pumped: int  # channels may read the log up to here
    settings: TopicSettings
    ttl_ns: int  # 0: messages do not get too old
    attempts_max: int  # 0: no dead letters
    exiting: bool
    journaled: Builder | None  # messages that are still to be filed in the log

    @property
    def visible_end(self) -> int:
        """Everything below was acknowledged, or is about to be."""

    def deliver_journaled(self, *, at_once: bool) -> None:
        """A consumer waits for what is journaled: append it to the log, at once or soon."""

    def delete_channel(self, name: str) -> object: ...

    def letterbox(self) -> Letterbox:
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
