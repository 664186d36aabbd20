"""Keeps a topic's manifest up to date: what of its state is not in the log or a cursor.

A manifest that cannot be written is written again every second until it can be: a kill must not
undo a change for longer than that. Knows the file (`log.directory`) and sees a topic as a small
protocol; must not know channels.
"""

from typing import Protocol

from pumpline.core.text.settings import NO_SETTINGS, TopicSettings
from pumpline.log.directory import Manifest
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.storage.checkpoints import CHECKPOINT_S
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room

_RETRY_S = 1.0


class DescribedTopic(Protocol):
    """A topic, as seen from here."""

    name: str
    log: Log | Ring
    disk: Disk
    ephemeral: bool
    exiting: bool
    settings: TopicSettings
    awaits_channels: bool

    @property
    def pumped(self) -> int: ...

    def make_room(self) -> bool:
        """Delete consumed history; return whether there was any."""


class ManifestWriter:
    __slots__ = ("_due", "_topic", "clean_mark", "is_missing")

    def __init__(self, topic: DescribedTopic) -> None:
        self.clean_mark: tuple[int, int, int] | None = None  # in the manifest on disk
        self.is_missing = False  # on disk: nothing says what the ids of the topic's messages are
        self._topic = topic
        self._due = False

    def write_soon(self) -> None:
        """With the next checkpoint of channels."""
        self._write_after(CHECKPOINT_S)

    def try_write(self, *, clean: bool = False) -> OSError | None:
        """Write it; if that fails it is written later, and the error is returned."""
        try:
            self.write(clean=clean)
        except OSError as error:
            return error
        return None

    def write(self, *, clean: bool = False) -> None:
        """Write it; OSError when it cannot be written now. `clean`: nothing is appended to the log
        any more, and its newest segment needs no check on the next start."""
        topic = self._topic
        if topic.ephemeral:
            return
        self.clean_mark = topic.log.mark() if clean else None
        try:
            self._replace(topic.settings)
        except OSError as error:
            topic.disk.health.failed(error, f"manifest of topic {topic.name}")
            self._write_after(_RETRY_S)
            raise

    def write_settings(self, settings: TopicSettings) -> None:
        """Write it with settings that are not the topic's yet; OSError when it cannot be."""
        self.clean_mark = None
        self._replace(settings)

    def _replace(self, settings: TopicSettings) -> None:
        topic = self._topic
        manifest = Manifest(
            base_id=topic.log.base_id,
            pumped=topic.pumped,
            clean=self.clean_mark,
            settings=None if settings == NO_SETTINGS else settings,
            awaits_channels=topic.awaits_channels,
        )
        write_with_room(topic.make_room, topic.disk.directory.write_manifest, topic.name, manifest)
        self.is_missing = False

    def _write_after(self, delay_s: float) -> None:
        topic = self._topic
        if not topic.ephemeral and not topic.exiting and not self._due:
            self._due = True
            topic.disk.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._due = False
        if not self._topic.exiting:
            self.try_write()
