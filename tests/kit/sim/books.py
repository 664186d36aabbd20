"""The books of topics and channels: what was published, who has it, and what may still come.

Written from the documentation, not from nsqd's code. A *copy* is one message in one channel. What a
copy may do next depends on what is certain about it:

| state    | means                                                                              |
|----------|------------------------------------------------------------------------------------|
| WAITING  | it is to be delivered: it must be if it is `required`, else it may or may not be   |
| OWNED    | a consumer has it, until it answers, leaves, or its time is up                     |
| DONE     | it was finished: it must not come again                                            |
| DROPPED  | an answered empty or seek took it away: it must not come again                     |
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

NS = 10**9
DURATIONS_NS = {"700ms": 700 * 10**6, "3s": 3 * NS}
NEVER = 1 << 62  # an event that does not come
SLACK_NS = NS // 20  # timers are exact within 50 ms


class State(Enum):
    WAITING = auto()
    OWNED = auto()
    DONE = auto()
    DROPPED = auto()


WAITING, OWNED, DONE, DROPPED = State


class Outcome(Enum):
    """Of a publish."""

    SENT = auto()  # and not answered yet
    TAKEN = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    DELETED = auto()  # with its topic: that, or that it came too late for it, was answered


@dataclass(eq=False)
class Message:
    body: bytes
    topic: str
    delay_ns: int = 0
    outcome: Outcome = Outcome.SENT
    number: int = 0  # in the order in which nsqd got them; 0: it has not
    arrived_at: int = 0  # by the ledger's count of events
    taken_at: int = 0  # by the ledger's count of events
    taken_ns: int = 0
    is_late: bool = False  # it was sent again, with its token: it is in the log then or now
    is_durable: bool = False  # it was synced: it survives a loss of power
    life: int = 0  # of nsqd, in which it arrived
    given_ns: int = 0  # when the topic may have given it to channels last; 0: never
    due_steady_ns: int = 0
    due_wall_ns: int = 0
    is_loose: bool = False  # it met a delete or an empty on its way: it may be anywhere or nowhere
    may_be_given: bool = False  # to the channels there were when its topic was paused, or not
    refused_at: int = 0
    may_return: bool = False  # if nsqd is killed before the disk works: it could not be cut off
    may_return_with_power: bool = False  # if power is lost: that it was cut off was not synced
    may_be_damaged: bool = False  # a loss of power may have left its place in the log, and not it
    places: int = 0  # so left, perhaps, before it was sent again
    ids: set[bytes] = field(default_factory=set)

    def __str__(self) -> str:
        return self.body.partition(b"-")[0].decode()


@dataclass(eq=False)
class Copy:
    message: Message
    required: bool
    state: State = WAITING
    owner: Any = None
    deadline_ns: int = 0
    first_ns: int = 0  # when the present owner got it
    attempts: int = 0  # deliveries so far
    attempts_min: int = 0  # of them, that nsqd cannot have forgotten
    delivered_ns: list[int] = field(default_factory=list)  # since nsqd started
    answered_ns: int = 0
    due_steady_ns: int = 0
    due_wall_ns: int = 0
    waits_for: "list[Copy]" = field(default_factory=list)  # they go before it
    is_loose: bool = False  # a seek met it: nothing is certain about it
    was_over: bool = False  # perhaps: a kill may have undone that, or an empty may have met it
    before: tuple[Any, ...] = ()  # state, owner, due: before the last answer

    @property
    def loose(self) -> bool:
        return self.is_loose or self.message.is_loose

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, DROPPED)

    def is_early(self, steady_ns: int, wall_ns: int) -> bool:
        """Whether its time has not come, whichever clock is right."""
        return steady_ns < self.due_steady_ns - SLACK_NS and wall_ns < self.due_wall_ns - SLACK_NS

    def give_back(self) -> None:
        self.state, self.owner = WAITING, None
        self.waits_for = []


class ChannelBook:
    def __init__(self, topic: "TopicBook", name: str, since: int) -> None:
        self.topic = topic
        self.name = name
        self.since = since  # by the ledger's count of events
        self.is_certain = True  # it exists
        self.is_half_deleted = False  # it is gone, or as it was
        self.paused: bool | None = False  # None: not known
        self.pause_is_saved = True  # a kill does not undo it
        self.pause_ns = 0  # when that was changed, and not saved
        self.copies: dict[bytes, Copy] = {}
        self.consumers: set[Any] = set()
        self.attended_at = 0  # by the ledger's count of events: it has had consumers since then
        self.was_moved = False  # by a seek: what it gives may have to be read from disk
        self.old_until = 0  # what arrived up to that event may be there: its state may be lost
        self.moved: set[bytes] | None = None  # what came while a seek was under way

    def __str__(self) -> str:
        return f"{self.topic.name}/{self.name}"

    @property
    def is_ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral")

    def attend(self, consumer: object, now: int) -> None:
        """The channel has this consumer from event `now` on."""
        if not self.consumers:
            self.attended_at = now
        self.consumers.add(consumer)

    def give(self, message: Message, *, required: bool) -> Copy:
        copy = self.copies.get(message.body)
        if copy is None:
            copy = self.copies[message.body] = Copy(message, required)
            copy.due_steady_ns, copy.due_wall_ns = message.due_steady_ns, message.due_wall_ns
        return copy

    def owned_by(self, owner: object) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.owner is owner]

    def fresh(self) -> list[Copy]:
        """What is ready and was never delivered, in the order of publishing."""
        found = [
            copy
            for copy in self.copies.values()
            if copy.state is WAITING
            and copy.required
            and not copy.attempts
            and not copy.message.delay_ns
            and not copy.loose
        ]
        return sorted(found, key=lambda copy: copy.message.number)

    def loosen(self) -> None:
        """Nothing in it is certain any more."""
        for copy in self.copies.values():
            copy.required = False
            copy.attempts_min = 0
            copy.delivered_ns = []
            copy.due_steady_ns = 0
            if copy.state is not OWNED:
                copy.state = WAITING


class TopicBook:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_certain = False  # it exists
        self.is_asked_for = False  # by others than publishers
        self.may_be_made = False  # by a publish that was not answered
        self.paused: bool | None = False
        self.paused_at = 0  # by the ledger's count of events: it was paused by then
        self.unpaused_at = 0  # likewise
        self.pause_is_saved = True  # a kill does not undo it
        self.pause_ns = 0  # when that was changed, and not saved
        self.channels: dict[str, ChannelBook] = {}
        self.backlog: list[Message] = []  # taken, and given to no channel yet
        self.emptied: list[Message] = []  # from it: a loss of power may undo that
        self.taken: dict[bytes, Message] = {}
        self.settings: dict[str, Any] = {}
        self.settings_maybe: list[dict[str, Any]] = []  # others that it may have
        self.configured_at = 0  # by the ledger's count of events
        self.disturbed_at = 0  # what arrived before, and was not answered, may be gone
        self.ttls_ns: set[int] = set()  # that it ever had
        self.drops = False  # it ever had drop-oldest
        self.attempts_max = NEVER  # the lowest max_attempts that it ever had
        self.unsafe_until = 0  # a TTL or a bound may take away what arrived up to that event
        self.holds: dict[str, int | None] = {}  # offsets; None: not known

    @property
    def is_ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral")

    def use(self, shown: dict[str, Any], now: int) -> None:
        """It has these settings at event `now`, as nsqd shows them."""
        self.settings = shown
        if self.unsafe_until == NEVER and not self.settings_maybe:
            self.unsafe_until = now
        for name, value in shown.items():
            self.note_setting(name, value)

    def note_setting(self, name: str, value: Any) -> None:
        if name == "message_ttl" and value is not None:
            self.ttls_ns.add(DURATIONS_NS[value])
            self.unsafe_until = NEVER
        if name == "when_full" and value == "drop-oldest":
            self.drops = True
            self.unsafe_until = NEVER
        if name == "max_attempts" and value is not None:
            self.attempts_max = min(self.attempts_max, value)

    @property
    def may_take_away(self) -> bool:
        """Whether a message that is not finished may go, for whatever reason."""
        return bool(self.unsafe_until) or self.attempts_max < NEVER

    def may_be_letter(self, copy: Copy) -> bool:
        """Whether a message may be among the dead letters instead of in its channel."""
        return copy.attempts >= self.attempts_max

    @property
    def ttl_ns(self) -> int:
        """The present TTL; 0: none, or not known."""
        value = self.settings.get("message_ttl")
        return 0 if value is None or self.settings_maybe else DURATIONS_NS[value]

    @property
    def is_remembered(self) -> bool:
        """Whether a channel outlives a kill, and with it what channels were given."""
        return any(each.is_certain and not each.is_ephemeral for each in self.channels.values())

    def copies_of(self, message: Message) -> list[Copy]:
        channels = self.channels.values()
        return [each.copies[message.body] for each in channels if message.body in each.copies]

    def settle(self, now_ns: int) -> None:
        """Channels get what is there for them, if the topic is not paused."""
        if self.paused:
            return
        for message in self.backlog if self.channels else ():
            message.given_ns = now_ns
            message.may_be_given = message.may_be_given or self.paused is None
        for channel in self.channels.values():
            sure = channel.is_certain and self.paused is False
            for message in self.backlog:
                copy = channel.give(message, required=False)
                # One that arrived before the channel was made, and was answered later, need not be
                # for it: it may have been in its place by then. Nor need one that channels may have
                # been given before the topic was paused.
                met = message.arrived_at <= channel.since < message.taken_at
                met = met or (message.may_be_given and message.arrived_at <= channel.since)
                if copy.state is WAITING:
                    copy.required = sure and not (message.is_loose or met or copy.was_over)
        if self.paused is False and any(each.is_certain for each in self.channels.values()):
            self.backlog = []

    def loosen(self) -> None:
        for message in self.taken.values():
            message.is_loose = True
        for channel in self.channels.values():
            channel.loosen()
