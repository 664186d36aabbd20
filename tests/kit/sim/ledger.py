"""The ledger: everything that happened at nsqd's sockets, and what it promises about that.

Every event is checked as it is entered. A broken promise is a *fault*; the first one ends a run.
The promises are those of docs/ and ARCHITECTURE.md:

- what was acknowledged is delivered, on every channel that existed by then, or, if there was none,
  on the first one; what was refused is never delivered;
- a message has one owner at a time, in one channel; the owner's answers count, nobody else's do;
- attempts count deliveries; a delayed message does not come early, a paused channel gives nothing;
- what is fresh comes in the order of publishing; what comes back waits for what was ready by then;
- what was finished, emptied or skipped does not come again;
- a kill undoes nothing but what a channel did in the moments before it (`window_ns`);
- a loss of power undoes what channels did, and with --sync-every=1 no acknowledged publish.

Knows no sockets and no files: `peers` and `simulation` tell it what they see.
"""

from typing import Any

from tests.kit.sim.books import ChannelBook, Copy, Message, Outcome, TopicBook
from tests.kit.sim.deliveries import Deliveries


class Ledger(Deliveries):
    def audit(self, stats: dict[str, Any], since: int) -> None:
        """Compare with /stats, asked for at event `since`; where the ledger was not sure it is
        afterwards."""
        there = {each["topic_name"]: each for each in stats["topics"] or ()}
        if self.disk_is_sound:
            self._still_named.clear()
            self._still_paused.clear()
            self._may_go.clear()
        messages = self.messages.values()
        self._not_gone_yet = set() if self.disk_is_sound else self._not_gone_yet & set(there)
        left = {name for name, at in self.never_made.items() if at <= since and name in there}
        for name in left - self._not_gone_yet:  # `there` may be older than the last refusals
            self.fault(f"topic {name} is there, after a refused publish")
        for name, topic in list(self.topics.items()):
            if name not in there:
                if topic.is_certain:
                    self.fault(f"topic {name} is gone")
                del self.topics[name]
                if self.disk_is_sound:  # and nsqd.dat says so
                    self._half_deleted -= {key for key in self._half_deleted if key[0] == name}
                continue
            found = there[name]
            may_go = name in self._may_go or any(
                m.topic == name and (self._is_pending(m) or m.refused_at > since) for m in messages
            )
            topic.is_certain = topic.is_certain or not may_go
            if found["paused"] and not topic.paused:
                topic.paused_at = self.now
            topic.paused = self._same(f"topic {name}", topic.paused, found["paused"])
            topic.settle(self.steady_ns)
            self._audit_channels(topic, found, since)
            topic.settle(self.steady_ns)
        for name, found in there.items():
            if name not in self.topics:
                self._unknown_topic(name)
                self.topic(name).paused = found["paused"]
                self._audit_channels(self.topic(name), found, since)

    def _is_pending(self, message: Message) -> bool:
        """Whether nsqd may refuse a publish yet, and with it the topic goes. The publisher may be
        gone: another publish of it was refused. Only a disk that fails makes nsqd refuse one."""
        is_unheard = message.outcome is Outcome.UNKNOWN and message.life == self.life
        return message.outcome is Outcome.SENT or (is_unheard and not self.disk_is_sound)

    def _audit_channels(self, topic: TopicBook, found: dict[str, Any], since: int) -> None:
        there = {each["channel_name"]: each for each in found["channels"] if not each.get("hold")}
        for name, channel in list(topic.channels.items()):
            if name not in there:
                if channel.is_certain:
                    self.fault(f"channel {channel} is gone")
                del topic.channels[name]
                self._half_deleted.discard((topic.name, name))
                if not self.disk_is_sound:
                    self._still_named.add((topic.name, name))
                sound = self.disk_is_sound and not self._after_power
                if not sound and not topic.is_remembered:
                    for copy in channel.copies.values():
                        copy.message.is_loose = True  # it may be for another channel now
                continue
            paused = there[name]["paused"]
            channel.paused = self._same(f"channel {channel}", channel.paused, paused)
            channel.is_certain = True
            channel.is_half_deleted = False
            if not topic.name.endswith(".dlq"):
                self._audit_depth(channel, there[name], since)
        for name in there:
            if name not in topic.channels:
                about = f"channel {topic.name}/{name}"
                if not self._after_power and (topic.name, name) not in self._half_deleted:
                    self.fault(f"{about} is there, and was never made or is deleted")
                if self._after_power:
                    topic.loosen()
                self.created(topic.name, name, 0).paused = there[name]["paused"]

    def _audit_depth(self, channel: ChannelBook, found: dict[str, Any], since: int) -> None:
        """A channel has what it must have, and no more than it can have."""
        copies = channel.copies.values()
        old_until, topic = channel.old_until, channel.topic
        most = sum(not c.is_over or c.loose or c.message.arrived_at <= old_until for c in copies)
        for message in self.messages.values():
            if (
                message.topic == topic.name
                and message.number
                and message.body not in channel.copies
            ):
                unsure = message.outcome in (Outcome.SENT, Outcome.UNKNOWN) or message.is_loose
                most += unsure or message.arrived_at <= old_until
            # Damage in older segments is found when they are read: until then its place counts,
            # besides the message itself if it was published again.
            most += message.places if message.topic == topic.name else 0
        there = found["depth"] + found["in_flight_count"]
        if there > most:
            self.fault(f"{channel} has {there} messages, and {most} are not finished")
        sure = [c for c in copies if c.required and not c.is_over and not c.loose]
        sure = [c for c in sure if c.message.taken_at <= since and c.message not in topic.backlog]
        there += found["deferred_count"]
        takes_away = topic.may_take_away or channel.is_ephemeral or channel.moved is not None
        if there < len(sure) and not takes_away:
            self.fault(f"{channel} has {there} messages, and must have {len(sure)}")

    def _unknown_topic(self, name: str) -> None:
        unanswered = (Outcome.SENT, Outcome.UNKNOWN)
        # It is made when the line of an MPUB is read, before its messages are.
        pending = any(m.topic == name and m.outcome in unanswered for m in self.messages.values())
        is_back = self._after_power or name in self._may_be_back
        if is_back or (name, "") in self._half_deleted:
            pending = True
        if not pending and not name.endswith(".dlq") and name not in self.never_made:
            self.fault(f"topic {name} is there, and was never made or is deleted")
        self.topic(name).is_certain = name not in self._may_go

    def _same(self, what: str, known: bool | None, found: bool) -> bool:
        if known is not None and known is not found:
            self.fault(f"{what} is {'' if found else 'not '}paused after all")
        return found

    def audited(self) -> None:
        self._after_power = False
        self._may_be_back.clear()

    def peeked(self, topic: str, there: dict[int, bytes]) -> None:
        """What is in the log: nothing that was refused, in the order of publishing."""
        book = self.topics.get(topic)
        last = 0
        for offset in sorted(there):
            message = self.messages.get(there[offset])
            if message is None or message.is_loose or book is None:
                continue
            if message.outcome in (Outcome.REFUSED, Outcome.DELETED):
                self.fault(f"{message} is in the log, and was {message.outcome.name.lower()}")
            sure = message.outcome is Outcome.TAKEN and not message.is_late
            if sure and message.life == self.life:
                if message.number < last:
                    self.fault(f"{message} is in the log after a newer one")
                last = message.number

    def check_all_came(self) -> None:
        """At the end of a run everything that must come has come."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for copy in channel.copies.values():
                    self._check_came(topic, channel, copy)
            for message in topic.backlog:
                if not message.is_loose and message.arrived_at > topic.unsafe_until:
                    self.fault(f"{message} of {topic.name} is for no channel")

    def _check_came(self, topic: TopicBook, channel: ChannelBook, copy: Copy) -> None:
        message = copy.message
        if copy.is_over or not copy.required or copy.loose or channel.is_ephemeral:
            return
        if message.body in self.letters or message.arrived_at <= topic.unsafe_until:
            return
        self.fault(f"{message} was acknowledged, and did not come on {channel}: {copy.state.name}")
