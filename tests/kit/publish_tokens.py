"""Publishes with tokens to the topic of a `FakeBroker`, and what it remembers of them."""

from pathlib import Path

from pumpline.core.messages.publish_tokens import digest_of
from pumpline.log.completion import Completion
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker

SMALL = 400  # bytes of a segment: a few messages


def options(**more: int) -> Options:
    return Options(max_bytes_per_file=SMALL, **more)  # type: ignore[arg-type]


def publish(topic: Topic, name: str, *, delay_ns: int = 0) -> Completion:
    """What /pub does with `token=name` and the same as its body."""
    token = digest_of(name)
    earlier = topic.upkeep.tokens.outcome(token)
    if earlier is not None:
        return earlier
    topic.publishing.add(name.encode(), 0, len(name), delay_ns=delay_ns, alone=True)
    topic.publishing.add_token(token)
    return topic.publishing.completion()


def publish_all(broker: FakeBroker, topic: Topic, *names: str) -> None:
    """One after another, each in a tick of its own, and synced."""
    for name in names:
        completion = publish(topic, name)
        broker.settle()
        broker.advance(2.5)  # more than --sync-timeout
        broker.settle()
        assert (completion.done, completion.error) == (True, None)


def names(count: int, first: int = 0) -> list[str]:
    return [f"name-{number}" for number in range(first, first + count)]


def known(topic: Topic, *candidates: str) -> list[str]:
    return [name for name in candidates if topic.upkeep.tokens.outcome(digest_of(name)) is not None]


def restarted(path: Path, more: Options | None = None) -> tuple[FakeBroker, Topic]:
    """The topic as a new process finds it after a kill."""
    broker = FakeBroker(path, more or options())
    return broker, broker.load()["t"]
