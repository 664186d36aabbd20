"""Files damaged while the daemon is down: all that is whole is delivered, and the rest is told.

A daemon takes a second or two to start and stop twice, so all damages of a kind are done to one
daemon, each to a topic of its own; what came of each is a test.
"""

from typing import NamedTuple

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash.damage import COUNT, SEGMENT_BYTES, SENT, Damage, flip_last_batch, methods
from tests.kit.crash.killable_nsqd import (
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    drain_all,
    until_barrier,
)

METHODS = dict(methods())


class Outcome(NamedTuple):
    damage: Damage
    received: list[bytes]
    said: str  # lines about this topic of level ERROR or WARNING
    kept: list[str]  # names of its .bad files
    received_later: list[bytes]  # after one message was published, and the daemon killed


def fill(nsqd: KillableNsqd, topics: list[str]) -> None:
    for topic in topics:
        create_channel(nsqd, topic, "c")
    with nsqd.connect() as client:
        for topic in topics:
            for body in SENT:
                client.mpub(topic, [body])
                nsqd.flush(topic)  # each is a batch of the log
            assert len(nsqd.segments(topic)) >= 3
    nsqd.await_flush()  # else the write-ahead log has what is damaged


def complaints(nsqd: KillableNsqd, topic: str) -> str:
    lines = [line for line in nsqd.log_since_start().splitlines() if f"{topic}:" in line]
    return "\n".join(line for line in lines if " ERROR: " in line or " WARNING: " in line)


def bodies(nsqd: KillableNsqd, topic: str) -> list[bytes]:
    return [message.body for message in drain_all(nsqd, topic, "c")]


@pytest.fixture(scope="module", params=["stop", "kill"])
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    flags = [f"--max-bytes-per-file={SEGMENT_BYTES}"]
    with KillableNsqd(tmp_path_factory.mktemp("damage") / "data", flags) as nsqd:
        fill(nsqd, list(METHODS))
        getattr(nsqd, request.param)()
        damages = {topic: damage(nsqd.segments(topic)) for topic, damage in METHODS.items()}
        nsqd.again()
        received = {topic: bodies(nsqd, topic) for topic in METHODS}
        said = {topic: complaints(nsqd, topic) for topic in METHODS}
        kept = {
            topic: sorted(path.name for path in nsqd.topic_path(topic).glob("*.bad"))
            for topic in METHODS
        }
        await_checkpoint(nsqd, list(METHODS)[-1], "c")
        with nsqd.connect() as client:
            for topic in METHODS:
                client.publish(topic, b"new")
        nsqd.kill()
        nsqd.again()
        return {
            topic: Outcome(damages[topic], received[topic], said[topic], kept[topic], later)
            for topic in METHODS
            for later in [bodies(nsqd, topic)]
        }


@pytest.mark.parametrize("method", METHODS)
def test_damage_costs_what_it_hit_and_nothing_else(
    outcomes: dict[str, Outcome], method: str
) -> None:
    outcome = outcomes[method]
    assert outcome.received == [body for body in SENT if body not in outcome.damage.lost]


@pytest.mark.parametrize("method", METHODS)
def test_damage_is_reported_and_kept(outcomes: dict[str, Outcome], method: str) -> None:
    outcome = outcomes[method]
    assert outcome.damage.said in outcome.said
    assert bool(outcome.said) == bool(outcome.damage.said)
    assert outcome.kept == ([outcome.damage.kept] if outcome.damage.kept else [])


@pytest.mark.parametrize("method", METHODS)
def test_damaged_topic_takes_messages_and_keeps_its_place(
    outcomes: dict[str, Outcome], method: str
) -> None:
    assert outcomes[method].received_later == [b"new"]


@pytest.fixture
def stopped(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon that was killed, with messages of topic t in several segments."""
    nsqd = new_nsqd(f"--max-bytes-per-file={SEGMENT_BYTES}").start()
    fill(nsqd, ["t"])
    nsqd.kill()
    return nsqd


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_damaged_last_message_does_not_stay_in_the_depth(new_nsqd: NewNsqd, ending: str) -> None:
    nsqd = new_nsqd(f"--max-bytes-per-file={SEGMENT_BYTES}").start()
    fill(nsqd, ["t"])
    getattr(nsqd, ending)()
    damage = flip_last_batch(nsqd.segments("t"))
    nsqd.again()
    assert bodies(nsqd, "t") == SENT[:-1]
    assert damage.said in complaints(nsqd, "t")
    assert [path.name for path in nsqd.topic_path("t").glob("*.bad")] == [damage.kept]


def test_all_segments_missing_leaves_a_topic_that_works(stopped: KillableNsqd) -> None:
    for path in stopped.segments("t"):
        path.unlink()
    stopped.again()
    assert bodies(stopped, "t") == []
    with stopped.connect() as client:
        client.publish("t", b"new")
    assert bodies(stopped, "t") == [b"new"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"nonsense"])
def test_damaged_cursor_brings_everything_again(stopped: KillableNsqd, content: bytes) -> None:
    (stopped.topic_path("t") / "c.cursor").write_bytes(content)
    stopped.again()
    assert bodies(stopped, "t") == SENT
    assert "cursor unreadable" in complaints(stopped, "t")


def test_cursor_with_a_torn_end_keeps_what_is_whole(stopped: KillableNsqd) -> None:
    stopped.again()
    with stopped.connect() as client:
        client.sub("t", "c")
        client.rdy(1)
        finished = [client.read_message()]
        for _ in range(COUNT // 2 - 1):
            client.fin(finished[-1].id)
            finished.append(client.read_message())
        client.send_command("RDY 0")
        client.fin(finished[-1].id)
        assert until_barrier(client) == []
    stopped.stop()
    with (stopped.topic_path("t") / "c.cursor").open("ab") as file:
        file.write(b"\x00\x00\x00\x40torn")
    stopped.again()
    assert bodies(stopped, "t") == SENT[COUNT // 2 :]
    assert "ignored 8 bytes at the end of the cursor" in complaints(stopped, "t")


@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_damaged_manifest_costs_nothing(stopped: KillableNsqd, content: bytes | None) -> None:
    path = stopped.topic_path("t") / "topic.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    stopped.again()
    messages = drain(stopped, "t", "c", COUNT)
    assert [message.body for message in messages] == SENT
    first = int(messages[0].id, 16)
    assert [int(message.id, 16) - first for message in messages] == list(range(COUNT))


def test_damaged_metadata_stops_the_daemon_from_starting(stopped: KillableNsqd) -> None:
    path = stopped.data_path / "nsqd.dat"
    path.write_bytes(b"{")
    with pytest.raises(AssertionError, match="nsqd ended with 1"):
        stopped.again()
    assert f"failed to parse metadata in {path} - " in stopped.log_since_start()
    assert path.read_bytes() == b"{"
    path.unlink()
    stopped.again()
    assert bodies(stopped, "t") == SENT
