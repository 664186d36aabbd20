"""The ledger's entries of what clients do: publish, receive, answer, leave; each is checked."""

from collections.abc import Iterable
from typing import Any

from tests.kit.sim.books import (
    DONE,
    DROPPED,
    NS,
    OWNED,
    SLACK_NS,
    WAITING,
    ChannelBook,
    Copy,
    Message,
    Outcome,
    TopicBook,
)
from tests.kit.sim.operations import Operations

MSG_TIMEOUT_MAX_NS = 20 * NS  # --max-msg-timeout of all runs
TICK_NS = NS // 1000  # more than a tick takes, in which its clock stands still


class Deliveries(Operations):
    # -- publishing ---------------------------------------------------------------------------

    def sending(self, topic: str, bodies: Iterable[bytes], delay_ns: int = 0) -> list[Message]:
        found = [Message(body, topic, delay_ns) for body in bodies]
        self.messages.update((message.body, message) for message in found)
        return found

    def arrived(self, messages: list[Message]) -> None:
        """nsqd has read the publish."""
        self.now += 1
        self.topic(messages[0].topic)
        self.never_made.pop(messages[0].topic, None)
        for message in messages:
            self._numbers += 1
            message.number = self._numbers
            message.arrived_at = self.now
            message.life = self.life
            if message.delay_ns:
                message.due_steady_ns = self.steady_ns + message.delay_ns
                message.due_wall_ns = self._clock.wall_ns() + message.delay_ns

    def taken(self, messages: list[Message]) -> None:
        """nsqd has written its OK."""
        self.now += 1
        is_known = messages[0].topic in self.topics
        topic = self.topic(messages[0].topic)
        if not all(message.is_loose for message in messages):
            topic.is_certain = True
        elif not is_known:
            topic.is_certain = False  # it was deleted meanwhile, and the OK waited for others
        self.never_made.pop(topic.name, None)
        self._check_bound(topic, messages)
        for message in messages:
            if not message.number:
                self.fault(f"{message} was acknowledged before it was there")
            message.outcome = Outcome.TAKEN
            message.taken_at = self.now
            message.taken_ns = self.steady_ns
            message.is_loose = message.is_loose or bool(topic.holds and not topic.channels)
            # Channels may have got it before the pause, with its OK late; or the pause came first.
            met_pause = topic.paused is True and message.arrived_at <= topic.paused_at
            message.may_be_given = met_pause and bool(topic.channels)
            topic.taken[message.body] = message
            topic.backlog.append(message)
        topic.settle(self.steady_ns)

    def refused(self, messages: list[Message], reason: str) -> None:
        """nsqd has answered with an error."""
        self.now += 1
        # With the topic it was for, a loss of power may bring it back.
        gone = "exiting" in reason.lower()
        for message in messages:
            message.outcome = Outcome.DELETED if gone else Outcome.REFUSED
            message.refused_at = self.now
            message.may_return = self.cannot_cut
            message.may_return_with_power = self.cannot_sync
            for channel in self._channels(message.topic):
                copy = channel.copies.get(message.body)
                if copy is not None and copy.attempts:
                    self.fault(
                        f"{message} was delivered on {channel}, and is refused now: {reason}"
                    )
        topic = self.topic(messages[0].topic)
        if not topic.is_certain and self.cannot_delete:
            self._may_go.add(topic.name)
        used = topic.taken or topic.channels or topic.holds or topic.settings
        used = used or topic.is_asked_for or topic.may_be_made or "backlog" in reason
        if not topic.is_certain and not used and not self._is_published_to(topic.name):
            self.never_made[topic.name] = self.now
            if self.cannot_delete:
                self._not_gone_yet.add(topic.name)

    def _is_published_to(self, topic: str) -> bool:
        """Whether there are other publishes under way, which may have made it."""
        sent = (each for each in self.messages.values() if each.outcome is Outcome.SENT)
        return any(each.topic == topic and each.number for each in sent)

    def lost(self, messages: list[Message]) -> None:
        """Nobody will ever know what became of the publish."""
        for message in messages:
            if message.outcome is Outcome.SENT:
                message.outcome = Outcome.UNKNOWN
                message.is_loose = True
                # The line of an MPUB makes its topic, before nsqd has read the rest.
                self.never_made.pop(message.topic, None)
                if message.topic in self.topics:
                    self.topics[message.topic].may_be_made = True

    def token_sent_again(self, messages: list[Message]) -> None:
        """A publish with a token of before is under way. If a loss of power took what came with the
        token then, it is published again."""
        for message in messages:
            if message.may_be_damaged:
                message.may_be_damaged = False
                message.places += 1

    def token_repeated(self, messages: list[Message]) -> None:
        """A publish with a token of before was answered with OK."""
        for message in messages:
            if message.outcome is not Outcome.TAKEN:  # then or now: nobody knows
                topic = self.topic(message.topic)
                topic.is_certain = True
                self.never_made.pop(topic.name, None)
                message.outcome = Outcome.TAKEN
                message.is_loose = not self._taken_late(topic, message)
                message.is_durable = self._group_commit

    def _taken_late(self, topic: TopicBook, message: Message) -> bool:
        """A publish without an answer turns out to be taken: it is for the channels that were there
        when it arrived, or for the first one. Return whether that is certain."""
        channels = [c for c in topic.channels.values() if c.is_certain and not c.is_ephemeral]
        old = [channel for channel in channels if channel.since < message.arrived_at]
        waits = not topic.channels and not topic.holds
        sure = old or waits
        if not sure or topic.disturbed_at >= message.arrived_at or topic.paused is not False:
            return False
        message.taken_at, message.taken_ns, message.is_late = self.now, self.steady_ns, True
        topic.taken[message.body] = message
        for channel in topic.channels.values():
            channel.give(message, required=channel in old)
        if waits:
            topic.backlog.append(message)
        self.repeats += 1
        return True

    def _check_bound(self, topic: TopicBook, messages: list[Message]) -> None:
        bound = topic.settings.get("max_depth")
        if bound is None or topic.settings_maybe:
            return
        if topic.settings.get("when_full") == "drop-oldest":
            topic.drops = True
            return
        if topic.drops or topic.ttls_ns or messages[0].arrived_at <= topic.configured_at:
            return
        for channel in topic.channels.values():
            sure = [c for c in channel.copies.values() if c.required and not c.is_over]
            sure = [c for c in sure if not topic.may_be_letter(c)]
            if not channel.is_ephemeral and len(sure) + len(messages) > bound:
                self.fault(f"{len(messages)} taken by {channel}, which has {len(sure)} of {bound}")

    # -- consuming ----------------------------------------------------------------------------

    def delivered(self, owner: Any, channel: ChannelBook, frame: Any) -> None:
        """nsqd has written a message to a consumer."""
        self.now += 1
        self.deliveries += 1
        body: bytes = frame.body
        message = self.messages.get(body)
        if message is None:
            self._other_delivered(channel, body)
            return
        about = f"{message} on {channel}, attempt {frame.attempts}"
        if message.outcome in (Outcome.REFUSED, Outcome.DELETED):
            self.fault(f"{about}: it was {message.outcome.name.lower()}")
        if message.topic != channel.topic.name or not message.number:
            self.fault(f"{about}: it was not published there")
        known = self._ids.setdefault((channel.topic.name, frame.id), message)
        if known is not message:
            self.fault(f"{about}: {known} has the same id")
        message.ids.add(frame.id)
        if len(message.ids) > 1:
            self.fault(f"{about}: it is there twice")
        copy = channel.copies.get(body)
        if copy is None:
            moves = channel.moved is not None
            loose = message.is_loose or message.arrived_at <= channel.old_until or moves
            if message.outcome is Outcome.TAKEN and not loose:
                self.fault(f"{about}: it was not for this channel")
            copy = channel.give(message, required=False)
            copy.is_loose = True
        self._check_delivery(about, owner, channel, copy, frame)
        copy.state, copy.owner = OWNED, owner
        copy.attempts = frame.attempts
        copy.first_ns = self.steady_ns
        copy.deadline_ns = self.steady_ns + owner.msg_timeout_ns
        copy.delivered_ns.append(self.steady_ns)
        copy.waits_for = []
        # A timeout counts from the clock of the tick, which is a little before the message is here.
        in_time = self.steady_ns + TICK_NS
        held = len([c for c in channel.owned_by(owner) if in_time < c.deadline_ns])
        if held > owner.rdy and channel.moved is None:
            self.fault(f"{about}: its consumer has {held} with a RDY of {owner.rdy}")

    def _check_delivery(
        self, about: str, owner: Any, channel: ChannelBook, copy: Copy, frame: Any
    ) -> None:
        message, topic = copy.message, channel.topic
        if channel.moved is not None:  # before or after it moves: nobody can tell
            channel.moved.add(message.body)
            return
        if copy.state in (DONE, DROPPED) and not copy.loose:
            self.fault(f"{about}: it is {copy.state.name}")
        if (
            copy.state is OWNED
            and self.steady_ns < copy.deadline_ns - SLACK_NS
            and not copy.is_loose
        ):
            self.fault(f"{about}: {copy.owner} has it, {owner} gets it")
        if channel.paused:
            self.fault(f"{about}: the channel is paused")
        low, high = copy.attempts_min + 1, copy.attempts + 1
        if not low <= frame.attempts <= high and not copy.loose:
            self.fault(f"{about}: expected {low} to {high}")
        if copy.is_early(self.steady_ns, self._clock.wall_ns()):
            early_s = (copy.due_steady_ns - self.steady_ns) / NS
            self.fault(f"{about}: {early_s:.3f} s too early")
        settings = topic.settings
        if not topic.settings_maybe:
            if settings.get("max_attempts") and frame.attempts > settings["max_attempts"]:
                self.fault(f"{about}: max_attempts is {settings['max_attempts']}")
            if ttl_ns := topic.ttl_ns:
                age_ns = self._clock.wall_ns() - frame.timestamp_ns - message.delay_ns
                if age_ns > ttl_ns + SLACK_NS:
                    self.fault(f"{about}: {age_ns / NS:.3f} s old, TTL {ttl_ns / NS:.3f} s")
        if frame.attempts == 1 and not (message.delay_ns or message.is_late or copy.loose):
            if message.number < owner.newest and not copy.attempts and copy.required:
                self.fault(f"{about}: it comes after a newer one")
            owner.newest = max(owner.newest, message.number)
        waits = [c for c in copy.waits_for if c.state is WAITING and not c.attempts and c.required]
        if waits and not topic.drops and not topic.ttls_ns:
            self.fault(f"{about}: {waits[0].message} was ready before it came back")

    def _other_delivered(self, channel: ChannelBook, body: bytes) -> None:
        """A message that nobody published: a dead letter, or none that should be there."""
        for message in self.messages.values():
            if b'"body":"%b"' % message.body in body:
                self.letters.add(message.body)
                return
        self.fault(f"on {channel}: {body!r}, which nobody published")

    def finished(self, owner: Any, channel: ChannelBook, copy: Copy) -> None:
        """nsqd has read a FIN."""
        if self._answer(owner, channel, copy):
            copy.state, copy.owner = DONE, None

    def requeued(self, owner: Any, channel: ChannelBook, copy: Copy, delay_ns: int) -> None:
        """nsqd has read a REQ."""
        if not self._answer(owner, channel, copy):
            return
        copy.give_back()
        copy.due_steady_ns = self.steady_ns + delay_ns if delay_ns else 0
        copy.due_wall_ns = self._clock.wall_ns() + delay_ns
        if not delay_ns:
            self._line_up(channel, copy)

    def touched(self, owner: Any, channel: ChannelBook, copy: Copy) -> None:
        """nsqd has read a TOUCH."""
        if self._answer(owner, channel, copy):
            latest_ns = copy.first_ns + MSG_TIMEOUT_MAX_NS
            copy.deadline_ns = min(self.steady_ns + owner.msg_timeout_ns, latest_ns)

    def _answer(self, owner: Any, channel: ChannelBook, copy: Copy) -> bool:
        """Return whether the answer may count. If not, it changes nothing, also if a kill comes
        before nsqd can say so."""
        self.now += 1
        mine = copy.state is OWNED and copy.owner is owner
        left_ns = copy.deadline_ns - self.steady_ns
        sure = mine and left_ns > SLACK_NS
        never = not mine or left_ns < -SLACK_NS
        copy.before = (copy.state, copy.owner, copy.due_steady_ns, copy.deadline_ns, sure)
        if never and not copy.loose:
            owner.expect_error(copy)
            return False
        copy.answered_ns = self.steady_ns
        return True

    def answer_failed(self, owner: Any, copy: Copy, text: str) -> None:
        """nsqd did not accept an answer: it is as if it had not come."""
        state, its_owner, due_ns, deadline_ns, sure = copy.before
        if sure:
            self.fault(f"{text}: {copy.message} was its to answer")
        copy.state, copy.owner = state, its_owner
        copy.due_steady_ns, copy.deadline_ns = due_ns, deadline_ns
        if state is OWNED and its_owner is owner and not sure:
            copy.give_back()  # its time was up

    def left(self, owner: Any, channel: ChannelBook) -> None:
        """A consumer is gone: what it had is available at once."""
        self.now += 1
        for copy in channel.owned_by(owner):
            late = self.steady_ns > copy.deadline_ns - SLACK_NS
            copy.give_back()
            if not late:
                self._line_up(channel, copy)
        channel.consumers.discard(owner)
        if not channel.consumers:  # what it waits for may leave the memory from now on
            for copy in channel.copies.values():
                copy.waits_for = []
        is_there = channel.topic.channels.get(channel.name) is channel
        if channel.is_ephemeral and not channel.consumers and is_there:
            self.deleted_channel(channel.topic.name, channel.name, self.now, certain=True)

    def _line_up(self, channel: ChannelBook, copy: Copy) -> None:
        """What comes back waits for what is ready now, if that is in memory: what arrives while
        nobody consumes may be on disk only."""
        fresh = channel.fresh()
        waiting = [
            each.message  # it was never delivered, or a kill made nsqd forget that it was
            for each in channel.copies.values()
            if each.state is WAITING and not each.attempts_min
        ]
        waiting += [
            message  # it was not acknowledged, and may be there
            for message in self.messages.values()
            if message.topic == channel.topic.name and message.body not in channel.copies
            if message.number and message.outcome in (Outcome.SENT, Outcome.UNKNOWN)
        ]
        in_memory = not channel.was_moved and all(
            message.life == self.life and message.arrived_at > channel.attended_at
            for message in waiting
        )
        if in_memory and len(fresh) * 8 <= self._mem_queue_size:
            copy.waits_for = fresh
