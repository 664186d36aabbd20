"""What nsqd says to an nsqlookupd: the difference between what is registered and what is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.text.names import is_ephemeral
from pumpline.nsqd.discovery.session import (
    PING,
    UNANSWERED_MAX,
    About,
    Identity,
    Session,
    SessionError,
)
from pumpline.nsqlookupd.protocol import Register, Unregister, V1Reader
from pumpline.nsqlookupd.registry import Registry
from tests.kit.v1_recording import EXCHANGES, OK, REFUSAL, beginning, identity

NSQD = Identity(
    broadcast_address="127.0.0.1", hostname="host", http_port=4151, tcp_port=4150, version="1.3.0"
)
INTRODUCTION = identity(tcp_port=4160, http_port=4161, hostname="host")


class Topics(dict[str, set[str]]):
    """Topics with their channels, and a session that is told of their changes."""

    def __init__(self, **topics: set[str]) -> None:
        super().__init__(topics)
        self.session = Session(self, self.get, reply_bytes_max=1000)

    def change(self, topic: str, *channels: str) -> None:
        self[topic] = set(channels)
        self.session.changed(topic)

    def delete(self, topic: str) -> None:
        self.pop(topic, None)
        self.session.changed(topic)

    def begin(self) -> bytes:
        said = self.session.begin(NSQD)
        assert self.session.receive(INTRODUCTION) == 1
        return said

    def say(self) -> list[str]:
        """Everything there is to say, with every command answered."""
        said: list[str] = []
        while lines := self.session.commands():
            said += lines
            assert self.session.receive(OK * len(lines)) == len(lines)
        assert self.session.settled
        return said


def test_it_introduces_itself_as_nsq_does() -> None:
    topics = Topics()
    expected = beginning(identity(tcp_port=4150, http_port=4151, hostname="host"), b"")
    assert topics.begin() == expected.said
    assert topics.session.about == About("127.0.0.1", "host", 4161, 4160, "1.3.0")


def test_zone_and_region_are_told_if_there_are_any() -> None:
    identity = Identity("a", "h", 1, 2, topology_region="r", topology_zone="z", version="v")
    said = Topics().session.begin(identity)
    assert said[:17] == b"  V1IDENTIFY\n" + (len(said) - 17).to_bytes(4)
    assert b'"topology_region":"r","topology_zone":"z"' in said


def test_the_recorded_exchange() -> None:
    topics = Topics()
    topics.begin()
    said: list[str] = []

    def change(topic: str, *channels: str) -> None:
        topics.change(topic, *channels)
        said.extend(topics.say())

    change("orders")
    change("orders", "audit")
    change("orders", "audit", "tail#ephemeral")
    change("orders", "tail#ephemeral")
    change("fresh")
    change("fresh", "known")
    topics.delete("orders")
    said.extend(topics.say())
    topics.session.ping()
    said.extend(topics.say())
    recorded = [exchange.said.decode().strip() for exchange in EXCHANGES]
    # NSQ takes the topic back before its channels, and is told that this is unexpected.
    assert said == [*recorded[:6], recorded[7], recorded[6], recorded[8]]


def test_nothing_is_said_before_the_other_side_introduced_itself() -> None:
    topics = Topics(t={"c"})
    topics.session.begin(NSQD)
    topics.session.ping()
    assert topics.session.commands() == []
    topics.session.receive(INTRODUCTION)
    assert topics.say() == [PING, "REGISTER t c"]


def test_all_there_is_is_registered_at_first() -> None:
    topics = Topics(a=set(), b={"c", "d#ephemeral"})
    topics.begin()
    assert topics.say() == ["REGISTER a", "REGISTER b c", "REGISTER b d#ephemeral"]
    assert topics.session.registered_count == 2


def test_what_came_and_went_before_there_was_time_is_not_mentioned() -> None:
    topics = Topics()
    topics.begin()
    for number in range(1000):
        topics.change(f"t{number}", "c")
        topics.delete(f"t{number}")
    assert topics.session.settled
    assert topics.say() == []


def test_a_topic_that_was_made_anew_is_taken_back_first() -> None:
    """Else a tombstone would hide the new one."""
    topics = Topics(t={"a", "b"})
    topics.begin()
    topics.say()
    topics.delete("t")
    topics.change("t", "b")
    assert topics.say() == ["UNREGISTER t", "REGISTER t b"]


def test_a_retired_session_takes_ephemeral_names_back() -> None:
    """The end of the connection takes back the others."""
    topics = Topics(t={"a", "b#ephemeral"}, u=set(), **{"v#ephemeral": {"c"}})
    topics.begin()
    topics.say()
    topics.session.retire()
    assert topics.say() == ["UNREGISTER t b#ephemeral", "UNREGISTER v#ephemeral"]
    topics.change("v")
    assert topics.say() == []


def test_no_more_commands_than_the_limit_wait_for_an_answer() -> None:
    topics = Topics(**{f"t{number}": set() for number in range(1000)})
    topics.begin()
    assert len(topics.session.commands()) == UNANSWERED_MAX
    topics.session.ping()
    topics.session.ping()
    assert topics.session.commands() == []
    topics.session.receive(OK * 2)
    assert topics.session.commands() == [PING, f"REGISTER t{UNANSWERED_MAX}"]


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        (1001).to_bytes(4),
        b"\x00\x00\x00\x02OK",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x02[]",
        b'\x00\x00\x00\x0f{"http_port":"x',
        b'\x00\x00\x00\x11{"http_port":"1"}',
        b"\x00\x00\x00\x03\xff\xfe\xfd",
        REFUSAL,
        INTRODUCTION + OK,
    ],
)
def test_an_introduction_that_is_none_ends_it(answer: bytes) -> None:
    topics = Topics()
    topics.session.begin(NSQD)
    with pytest.raises(SessionError):
        topics.session.receive(answer)


@pytest.mark.parametrize("answer", [REFUSAL, b"\x00\x00\x00\x02ok", OK + OK, (2**31).to_bytes(4)])
def test_an_answer_that_is_none_ends_it(answer: bytes) -> None:
    topics = Topics(t=set())
    topics.begin()
    assert topics.session.commands() == ["REGISTER t"]
    with pytest.raises(SessionError):
        topics.session.receive(answer)


def test_what_a_stranger_answers_is_shown_in_one_short_line() -> None:
    topics = Topics(t=set())
    topics.begin()
    topics.session.commands()
    text = b"E_\n\xff" + b"x" * 500
    with pytest.raises(SessionError) as caught:
        topics.session.receive(len(text).to_bytes(4) + text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_answers_may_come_in_any_pieces(size: int) -> None:
    topics = Topics(t={"a", "b", "c"})
    topics.session.begin(NSQD)

    def receive(stream: bytes) -> int:
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        return sum(topics.session.receive(piece) for piece in pieces)

    assert receive(INTRODUCTION) == 1
    assert len(topics.session.commands()) == 3
    assert receive(OK * 3) == 3
    assert topics.session.settled


NAMES = st.sampled_from(["a", "b", "c#ephemeral"])
STEPS = st.lists(st.tuples(NAMES, st.none() | st.sets(NAMES), st.integers(0, 3)), max_size=30)


@given(STEPS)
def test_after_any_changes_the_nsqlookupd_knows_what_there_is(
    steps: list[tuple[str, set[str] | None, int]],
) -> None:
    """With our own nsqlookupd at the other end, which answers now and then."""
    topics = Topics(a={"b"})
    reader = V1Reader()
    registry = Registry(inactive_ns=1, tombstone_ns=1)
    reader.feed(topics.session.begin(NSQD))
    event = reader.next_event()
    node = registry.add_node("peer", event.identity, 0)  # type: ignore[union-attr]
    topics.session.receive(INTRODUCTION)

    def exchange(answers_max: int) -> None:
        lines = topics.session.commands()
        reader.feed("".join(f"{line}\n" for line in lines).encode())
        for _ in range(answers_max):
            event = reader.next_event()
            if isinstance(event, Register):
                registry.register(node, event.topic, event.channel)
            elif isinstance(event, Unregister):
                registry.unregister(node, event.topic, event.channel, 0)
            else:
                break
            topics.session.receive(OK)

    for topic, channels, answers_max in steps:
        if channels is None:
            topics.delete(topic)
        else:
            topics.change(topic, *channels)
        exchange(answers_max)
    while not topics.session.settled:
        exchange(1000)

    known = {
        topic.name: {channel.name for channel in topic.channels.values() if channel.nodes}
        for topic in registry.topics.values()
        if topic.nodes
    }
    assert known == topics
    left = [name for topic in registry.topics.values() for name in topic.channels]
    shown = {name for channels in topics.values() for name in channels}
    assert {name for name in left if is_ephemeral(name)} <= shown
