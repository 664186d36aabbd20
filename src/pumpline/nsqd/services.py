"""What the broker's parts share: options, the tick, the disk, timers and threads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pumpline.log.directory import Directory
from pumpline.log.files import FilePool
from pumpline.log.log import Offload
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.checkpoints import Checkpoints
from pumpline.nsqd.storage.disk_health import Health
from pumpline.nsqd.storage.fsync import Syncs

if TYPE_CHECKING:
    from pumpline.nsqd.queue.channel import TimerHandle
    from pumpline.nsqd.queue.topic import Topic


def _no_topic(name: str) -> "Topic":
    raise OSError(f"no topic {name}: there is no broker yet")


@dataclass(slots=True, kw_only=True)
class Services:
    options: Options
    tick: Tick
    directory: Directory
    files: FilePool
    health: Health
    checkpoints: Checkpoints
    syncs: Syncs
    offload: Offload
    later: "Callable[[float, Callable[[], None]], TimerHandle]"
    registration_changed: Callable[[str, str | None], None]
    """Called with a topic, and a channel of it, that came or went."""
    drop_history: Callable[[], bool]
    """Deletes the consumed segments of all topics; whether there were any."""
    topic_gone: Callable[[str], None]
    """Called when an ephemeral topic has deleted itself."""
    tail_bytes_max: int
    """How much of its log a topic may keep in memory, for readers that keep up."""
    find_topic: "Callable[[str], Topic]" = field(default=_no_topic)
    """The topic of that name, created if need be; OSError when it cannot be."""
