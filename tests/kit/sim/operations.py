"""The ledger's entries of what operators do: create, delete, empty, pause, seek, settings, holds.

`certain`: it was answered, so it is so and stays so over a kill. Else it may be so or not.
"""

from typing import Any

from tests.kit.sim.books import (
    DROPPED,
    NEVER,
    WAITING,
    ChannelBook,
    Copy,
    Outcome,
    TopicBook,
)
from tests.kit.sim.ledger_state import LedgerState


class Operations(LedgerState):
    def created(self, topic: str, name: str, since: int, *, certain: bool = True) -> ChannelBook:
        """A channel is there, and was not at event `since`."""
        book = self.topic(topic)
        book.is_certain = book.is_certain or certain
        book.is_asked_for = True
        self.never_made.pop(topic, None)
        channel = book.channels.get(name)
        if channel is None:
            channel = book.channels[name] = ChannelBook(book, name, since)
            channel.is_certain = certain
            for message in book.taken.values():
                if message.taken_at > since:  # it may have been there in time
                    channel.give(message, required=False)
        if certain and channel.is_half_deleted:  # as it was, or new
            channel.is_half_deleted = False
            channel.loosen()
        channel.is_certain = channel.is_certain or certain
        book.settle(self.steady_ns)
        return channel

    def deleted_topic(self, name: str, since: int, *, certain: bool) -> None:
        topic = self.topics.get(name)
        if topic is None:
            return
        self._loosen_pending(name, since)
        if certain:
            if topic.paused is not False and not self.disk_is_sound:
                self._still_paused.add(name)
            del self.topics[name]
            self._deleted_with(name, since)
            self._ids = {key: each for key, each in self._ids.items() if key[0] != name}
        else:
            self._doubt(topic)
            self._half_deleted.add((name, ""))
            # What says that these are deleted is gone with the topic's directory.
            self._half_deleted |= {key for key in self._still_named if key[0] == name}
            for channel in topic.channels.values():
                self._half_deleted.add((name, channel.name))
                channel.is_certain = False
                channel.paused = None
            topic.loosen()
            self._forget_ids(name)

    def _deleted_with(self, topic: str, since: int) -> None:
        """What the topic had at event `since` is gone, and never comes again."""
        for message in self.messages.values():
            if message.topic == topic and message.outcome in (Outcome.TAKEN, Outcome.UNKNOWN):
                message.ids = set()
                if message.arrived_at <= since:
                    message.outcome, message.is_loose = Outcome.DELETED, False
                else:
                    message.outcome, message.is_loose = Outcome.UNKNOWN, True

    def _doubt(self, topic: TopicBook) -> None:
        """It may be another one of that name, or none."""
        topic.is_certain = False
        topic.paused = None
        topic.settings_maybe.append({})
        topic.holds = dict.fromkeys(topic.holds)

    def _forget_ids(self, topic: str) -> None:
        """The topic's log is gone, or may be: with a token, its messages may be published again."""
        for message in self.messages.values():
            if message.topic == topic:
                message.ids = set()
                if message.outcome is Outcome.TAKEN:
                    message.outcome = Outcome.UNKNOWN
                    message.is_loose = True

    def deleted_channel(self, topic: str, name: str, since: int, *, certain: bool) -> None:
        book = self.topic(topic)
        channel = book.channels.get(name)
        if channel is None:
            return
        self._loosen_pending(topic, since)
        if certain:
            del book.channels[name]
        else:
            self._half_deleted.add((topic, name))
            channel.is_certain = False
            channel.is_half_deleted = True
            channel.paused = None
        if not [each for each in book.channels.values() if each.is_certain]:
            for message in book.taken.values():  # that the next one is not given these is certain,
                message.is_loose = message.is_loose or not certain  # if it is that it is deleted

    def emptied(self, topic: str, name: str | None, since: int, *, certain: bool) -> None:
        """A channel, or a topic: what it had at event `since` is gone."""
        book = self.topic(topic)
        self._loosen_pending(topic, since)
        if name is None:
            for message in book.backlog:
                message.is_loose = message.is_loose or not certain
                kept_back = certain and book.paused is True and not message.may_be_given
                for copy in book.copies_of(message):  # a seek may have reached it
                    if kept_back:
                        self._drop(copy, certain=True)
                    else:
                        copy.required = False
            if certain:
                book.emptied += [message for message in book.backlog if not message.is_loose]
                book.backlog = [message for message in book.backlog if message.is_loose]
            return
        channel = book.channels.get(name)
        for copy in channel.copies.values() if channel else ():
            # What the topic may not have given to the channel yet is not the channel's. One that it
            # may have given, as a pause was not answered yet when it came, may be gone by this.
            kept_back = copy.message in book.backlog
            copy.was_over = copy.was_over or (kept_back and copy.message.may_be_given)
            sure = certain and not kept_back
            if sure or not copy.is_over:  # what is over does not come back by this
                self._drop(copy, certain=sure)

    def seeking(self, topic: str, name: str) -> None:
        """A channel is to be moved; from here on it may be."""
        self.topics[topic].channels[name].moved = set()

    def sought(
        self,
        topic: str,
        name: str,
        kept: set[bytes],
        skipped: set[bytes],
        since: int,
        *,
        certain: bool,
    ) -> None:
        """A channel was moved: it goes on with `kept`. Both are what the log had at event `since`.

        While the disk is full, the write-ahead log may have messages that come after these: to
        any place in the log a seek keeps them.
        """
        there = (self.messages[body].number for body in kept | skipped if body in self.messages)
        log_end = NEVER if self.disk_is_sound else max(there, default=0)
        self._loosen_pending(topic, since)
        channel = self.topic(topic).channels[name]
        moved, channel.moved = channel.moved or set(), None
        channel.was_moved = True
        for consumer in channel.consumers:
            consumer.newest = 0
        for message in channel.topic.backlog:
            channel.give(message, required=False)
        for copy in list(channel.copies.values()):
            body, message = copy.message.body, copy.message
            if body in moved or not certain:
                self._drop(copy, certain=False)
                copy.is_loose = True
            elif body in kept or message.number > log_end:
                again = channel.copies[body] = Copy(message, message.outcome is Outcome.TAKEN)
                again.due_steady_ns, again.due_wall_ns = 0, 0
            else:
                self._drop(copy, certain=True)
        for body in kept:
            message_there = self.messages.get(body)
            if message_there is not None and body not in channel.copies:
                channel.give(message_there, required=False).due_steady_ns = 0

    def paused(self, topic: str, name: str | None, paused: bool, *, certain: bool) -> None:
        book = self.topics.get(topic)
        target = book if name is None or book is None else book.channels.get(name)
        if book is not None:
            book.disturbed_at = self.now
        if target is book and book is not None and paused and certain and not book.paused:
            book.paused_at = self.now
        if target is book and book is not None and not paused and book.paused is not False:
            book.unpaused_at = self.now
        if target is not None:
            target.paused = paused if certain else None
            target.pause_is_saved = certain
        if book is not None:
            book.settle(self.steady_ns)

    def configured(self, topic: str, shown: dict[str, Any]) -> None:
        """Settings were changed, and are these now."""
        book = self.topic(topic)
        book.settings_maybe = []
        book.configured_at = self.now
        book.use(shown, self.now)

    def perhaps_configured(self, topic: str, changes: dict[str, Any]) -> None:
        book = self.topic(topic)
        book.settings_maybe += [dict(book.settings), {}]
        for name, value in changes.items():
            book.note_setting(name, value)

    def settings_found(self, topic: str, shown: dict[str, Any]) -> None:
        book = self.topics.get(topic)
        if book is None:
            return
        if book.settings and not book.settings_maybe and shown != book.settings:
            self.fault(f"settings of {topic} are {shown}, and were {book.settings}")
        book.use(shown, self.now)

    def held(self, topic: str, hold: str, offset: int | None, *, certain: bool) -> None:
        """A hold is at `offset` now; None: it is deleted, or nobody knows."""
        book = self.topic(topic)
        self.never_made.pop(topic, None)
        holds = book.holds
        for message in () if book.is_remembered else book.backlog:
            message.is_loose = True  # what holds have passed may be deleted
        if certain and offset is None:
            holds.pop(hold, None)
        else:
            holds[hold] = offset

    def holds_found(self, topic: str, found: dict[str, int], first: int) -> None:
        book = self.topics.get(topic)
        if book is None:
            return
        for name, offset in book.holds.items():
            if offset is not None and found.get(name) != offset:
                self.fault(f"hold {topic}/{name} is at {found.get(name)}, and was at {offset}")
        for name, offset in found.items():
            if name not in book.holds and not self._after_power:
                self.fault(f"hold {topic}/{name} is there, and is deleted")
            if offset < first and book.holds.get(name) is not None:
                self.fault(f"hold {topic}/{name} is at {offset}, and the log begins at {first}")
        unsure = {name: None for name, offset in book.holds.items() if offset is None}
        book.holds = {**found, **unsure}

    def _drop(self, copy: Copy, *, certain: bool) -> None:
        if certain and not copy.loose:
            copy.state, copy.owner = DROPPED, None
            copy.answered_ns = self.steady_ns
        else:
            copy.required = False
            copy.attempts_min = 0
            copy.delivered_ns = []
            copy.due_steady_ns = 0
            copy.state, copy.owner = WAITING, None

    def _loosen_pending(self, topic: str, since: int) -> None:
        """Publishes that are under way, or were at event `since`, may have come before or after."""
        if topic in self.topics:
            self.topics[topic].disturbed_at = self.now
        for message in self.messages.values():
            if (message.topic == topic and message.outcome is Outcome.SENT and message.number) or (
                message.topic == topic and since and message.taken_at > since
            ):
                message.is_loose = True
