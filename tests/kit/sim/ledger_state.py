"""What the ledger knows, and what a new process of nsqd knows of it after a kill.

Books that are certain stay so; what a kill or a loss of power may have undone is not certain any
more, and may come or not.
"""

from collections.abc import Iterable

from tests.kit.sim.books import (
    DONE,
    DROPPED,
    NS,
    OWNED,
    WAITING,
    ChannelBook,
    Copy,
    Message,
    Outcome,
    TopicBook,
)
from tests.kit.sim.loop import VirtualClock

NEVER_NS = 1 << 62


class LedgerState:
    def __init__(
        self, clock: VirtualClock, *, mem_queue_size: int, group_commit: bool, rolls: bool
    ) -> None:
        self.topics: dict[str, TopicBook] = {}
        self.messages: dict[bytes, Message] = {}
        self.faults: list[str] = []
        self.window_ns = NS // 4  # what a kill may undo of channels
        self.sync_ns = 3 * NS  # what a loss of power may take
        self.life = 0
        self.now = 0  # counts events
        self.never_made: dict[str, int] = {}  # topics that refused publishes left, and when
        self._not_gone_yet: set[str] = set()  # of them: they go once the disk lets them
        self._may_go: set[str] = set()  # likewise, if no publish without an answer has made them
        self._may_be_back: set[str] = set()  # topics that were there no more, until the next audit
        # The disk fails so that what was refused cannot be cut off, or a topic not be deleted.
        self.cannot_cut = self.cannot_delete = self.cannot_sync = False
        self.letters: set[bytes] = set()  # bodies of dead letters that came
        self.deliveries = 0
        self.repeats = 0  # publishes without an answer that turned out to be taken, for certain
        self._clock = clock
        self._mem_queue_size = mem_queue_size
        self._group_commit = group_commit
        self._rolls = rolls  # logs have more than one segment
        self._numbers = 0
        self._began_ns = 0  # the present life
        self._ids: dict[tuple[str, bytes], Message] = {}
        self._bad_from_ns = NEVER_NS  # the disk fails since then
        self._good_from_ns = 0
        self._after_power = False  # what was deleted may be there again
        self._half_deleted: set[tuple[str, str]] = set()  # so may these be: it was not written
        self._still_named: set[tuple[str, str]] = set()  # deleted channels, perhaps in nsqd.dat
        self._still_paused: set[str] = set()  # deleted topics, perhaps paused in nsqd.dat

    def fault(self, text: str) -> None:
        at_s = self._clock.passed_ns / NS
        self.faults.append(f"{at_s:.3f} s, life {self.life}: {text}")

    @property
    def steady_ns(self) -> int:
        return self._clock.steady_ns()

    def topic(self, name: str) -> TopicBook:
        return self.topics.setdefault(name, TopicBook(name))

    def _channels(self, topic: str) -> Iterable[ChannelBook]:
        return self.topics[topic].channels.values() if topic in self.topics else ()

    # -- the disk, and the end of a process ------------------------------------------------------

    def disk_failing(self) -> None:
        self._bad_from_ns = min(self._bad_from_ns, self.steady_ns)
        self._good_from_ns = NEVER_NS

    def disk_healed(self) -> None:
        if self._bad_from_ns < NEVER_NS:
            self._good_from_ns = min(self._good_from_ns, self.steady_ns)

    def clock_set(self) -> None:
        """What was published with a delay is due at a date until a channel reads it, and from then
        on after a time: by any wall clock that there was before it came."""
        ahead_ns = self.steady_ns - self._clock.wall_ns()
        for message in self.messages.values():
            if message.delay_ns:
                due_ns = message.due_wall_ns + ahead_ns
                message.due_steady_ns = min(message.due_steady_ns, due_ns)
                for channel in self._channels(message.topic):
                    copy = channel.copies.get(message.body)
                    if copy is not None and not copy.attempts:
                        copy.due_steady_ns = min(copy.due_steady_ns, due_ns)

    def safe_ns(self) -> int:
        """What channels did before then survives a kill now."""
        since_good_ns = self.steady_ns - self._good_from_ns
        if self._bad_from_ns < NEVER_NS and since_good_ns < 3 * self.window_ns + 2 * NS:
            return self._bad_from_ns - self.window_ns
        self._bad_from_ns = NEVER_NS
        return self.steady_ns - self.window_ns

    @property
    def disk_is_sound(self) -> bool:
        self.safe_ns()
        return self._bad_from_ns == NEVER_NS

    def killed(self, *, power: bool) -> None:
        self.now += 1
        self._note_durable(min(self.steady_ns, self._bad_from_ns) - self.sync_ns)
        safe_ns = -1 if power else self.safe_ns()
        if not self.disk_is_sound:
            for message in self.messages.values():
                if message.may_return or (power and message.may_return_with_power):
                    message.outcome, message.is_loose = Outcome.UNKNOWN, True
        # A topic that went with the refused publish that made it comes back if the disk forgets
        # that it went, or if nsqd.dat names it: an older topic of that name was only half deleted,
        # or nsqd.dat was written while the publish waited for an fsync, and could not be since. One
        # that the disk did not let go is there like any other.
        half_deleted = {name for name, channel in self._half_deleted if not channel}
        if power or (self._group_commit and not self.disk_is_sound):
            self._may_be_back |= set(self.never_made)
            self.never_made.clear()
        for name in half_deleted | self._not_gone_yet:
            self.never_made.pop(name, None)
        self._not_gone_yet.clear()
        self._may_go.clear()
        for topic in self.topics.values():
            if not topic.is_remembered:
                self._forget_given(topic, safe_ns)
            if not topic.pause_is_saved:  # it may be paused again, as it was
                self._forget_given(topic, topic.pause_ns)
            for target in (topic, *topic.channels.values()):
                if not target.pause_is_saved:
                    target.paused = None
            # nsqd.dat may say of it what was true of the old one.
            if topic.name in half_deleted | self._still_paused:
                self._forget_given(topic, -1)
                for target in (topic, *topic.channels.values()):
                    target.paused = None
            for channel in list(topic.channels.values()):
                if channel.is_ephemeral or topic.is_ephemeral:
                    del topic.channels[channel.name]
                for copy in channel.copies.values():
                    self._shake(copy, safe_ns, power=power)
            if power:
                for message in topic.emptied:  # an empty is not synced
                    message.is_loose = True
                topic.emptied.clear()
                self._unsure(topic)
                if not topic.is_remembered:  # the channels that would are lost, perhaps
                    self._forget_given(topic, safe_ns)
        self._begin_life(power=power)

    def stopped(self) -> None:
        """nsqd ended in order."""
        self.now += 1
        self._note_durable(self.steady_ns)
        for topic in self.topics.values():
            for channel in list(topic.channels.values()):
                if channel.is_ephemeral or topic.is_ephemeral:
                    del topic.channels[channel.name]
                for copy in channel.copies.values():
                    self._shake(copy, NEVER_NS, power=False)
        self._begin_life(power=False)

    def _note_durable(self, until_ns: int) -> None:
        """What was taken up to `until_ns` was synced, and so was what the last process left if this
        one began by then."""
        for message in self.messages.values():
            if message.outcome is Outcome.TAKEN:
                old = message.life < self.life
                since_ns = self._began_ns if old else message.taken_ns
                sure = since_ns <= until_ns or (self._group_commit and not old)
                message.is_durable = message.is_durable or sure

    def _begin_life(self, *, power: bool) -> None:
        self.life += 1
        self._began_ns = NEVER_NS  # it has not yet
        self.topics = {n: each for n, each in self.topics.items() if not each.is_ephemeral}
        self._after_power = self._after_power or power
        if power:
            for message in self.messages.values():
                message.ids = set()
                if message.outcome is Outcome.DELETED:  # its topic may be back
                    message.outcome, message.is_loose = Outcome.UNKNOWN, True
            self._ids.clear()

    def began(self) -> None:
        """The new process has read what is there."""
        self._began_ns = self.steady_ns

    def _forget_given(self, topic: TopicBook, safe_ns: int) -> None:
        """No cursor says what the topic has given to channels: what it gave in the last moment may
        be given to the next channel again."""
        for message in topic.taken.values():
            if message.given_ns > safe_ns:
                message.is_loose = True

    def _shake(self, copy: Copy, safe_ns: int, *, power: bool) -> None:
        """What a new process knows of a message."""
        safe = [at_ns for at_ns in copy.delivered_ns if at_ns <= safe_ns]
        if safe:
            copy.attempts_min = copy.attempts - len(copy.delivered_ns) + len(safe)
        if power:
            copy.attempts_min = 0
        copy.delivered_ns = []
        if copy.state is OWNED:
            copy.give_back()
        copy.waits_for = []
        undone = copy.state is DONE and copy.answered_ns > safe_ns
        if undone or (copy.state is DROPPED and power):
            copy.state, copy.required, copy.was_over = WAITING, False, True
        if copy.answered_ns > safe_ns:
            copy.due_steady_ns = min(copy.due_steady_ns, copy.message.due_steady_ns)
        if power and not copy.message.is_durable:
            copy.required = False

    def _unsure(self, topic: TopicBook) -> None:
        """After a loss of power. Every message that was synced is there, and so is what was made
        before it."""
        topic.paused = None
        topic.disturbed_at = self.now
        newest = max((m.arrived_at for m in topic.taken.values() if m.is_durable), default=0)
        if newest <= topic.unpaused_at:  # it may be paused again, with what it had by then
            self._forget_given(topic, topic.pause_ns)
        for channel in topic.channels.values():
            channel.paused = None
            channel.is_certain = channel.is_certain and newest > channel.since
            channel.old_until = self.now  # it begins with the oldest if its state is lost
        if not newest:
            self._doubt(topic)
            self._forget_ids(topic.name)
        for message in topic.taken.values():
            if not message.is_durable:
                message.outcome, message.is_loose = Outcome.UNKNOWN, True
                message.may_be_damaged = self._rolls
