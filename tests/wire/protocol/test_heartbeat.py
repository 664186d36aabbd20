"""Heartbeats and the deadlines that hang on them.

The scenarios take seconds each, so they run side by side once, and the tests read what each saw.
Lower bounds are exact; upper bounds leave room for a busy machine: test_heartbeat of the unit tests
knows the time to the nanosecond.
"""

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.kit.daemons import Nsqd, RawClient
from tests.kit.wire.admin import await_channel
from tests.kit.wire.commands import identify, mpub, pub, rdy, u32
from tests.kit.wire.session import FRAME_MESSAGE, HEARTBEAT_FRAME, OK, Frame, Session

INTERVAL_S = 1.0
WATCH_S = 3.5
LATE_S = 20.0
END_S_MAX = 2 * INTERVAL_S + LATE_S
EARLY_S = 0.05  # clocks of event loops are cached, and count milliseconds


class Sighting(NamedTuple):
    at_s: float
    frame: Frame


class Watched(NamedTuple):
    """What one connection saw, in seconds since its last command before the watch began."""

    seen: list[Sighting]
    closed_s: float | None
    alive: bool

    @property
    def beats_s(self) -> list[float]:
        return [sighting.at_s for sighting in self.seen if sighting.frame == HEARTBEAT_FRAME]


def watch(
    session: Session,
    *opening: bytes,
    answer: bytes = b"",
    trickle: bytes = b"",
    watch_s: float = WATCH_S,
) -> Watched:
    """Sends `opening`, then reads; `answer` follows each heartbeat, `trickle` goes byte by byte."""
    start_s = time.monotonic()
    session.send(*opening)
    seen: list[Sighting] = []
    drip = iter(trickle)
    try:
        while (elapsed_s := time.monotonic() - start_s) < watch_s:
            with contextlib.suppress(TimeoutError):
                frame = session.frame(timeout_s=min(0.2, watch_s - elapsed_s))
                seen.append(Sighting(time.monotonic() - start_s, frame))
                if frame == HEARTBEAT_FRAME and answer:
                    session.send(answer)
            if (byte := next(drip, None)) is not None:
                session.send(bytes([byte]))
    except (EOFError, ConnectionError):
        return Watched(seen, time.monotonic() - start_s, alive=False)
    return Watched(seen, None, alive=_answers(session))


def _answers(session: Session) -> bool:
    session.send(pub("heartbeat-alive", b"x"))
    while (frame := session.frame()) != OK:
        assert frame == HEARTBEAT_FRAME, frame
    return True


BEAT = identify({"heartbeat_interval": 1000})

SCENARIOS: dict[str, Callable[[Session], Watched]] = {
    "answers with NOP": lambda s: watch(s, BEAT, answer=b"NOP\n"),
    "answers with PUB": lambda s: watch(s, BEAT, answer=pub("heartbeat-pub", b"x")),
    "answers without IDENTIFY": lambda s: watch(s, b"NOP\n"),
    "silent": lambda s: watch(s, BEAT, watch_s=END_S_MAX),
    "silent consumer": lambda s: watch(
        s, BEAT, b"SUB heartbeat-sub ch\n", rdy(1), watch_s=END_S_MAX
    ),
    "unfinished line": lambda s: watch(s, BEAT, trickle=b"NOP" + b" " * 100, watch_s=END_S_MAX),
    "unfinished body": lambda s: watch(
        s, BEAT, b"PUB heartbeat-slow\n", u32(1000), trickle=b"x" * 100, watch_s=END_S_MAX
    ),
    "disabled": lambda s: watch(s, identify({"heartbeat_interval": -1})),
    "consumer": lambda s: watch(
        s,
        BEAT,
        b"SUB heartbeat-flow ch\n",
        rdy(10),
        mpub("heartbeat-flow", [b"x"] * 5),
        answer=b"NOP\n",
    ),
}


Scenes = dict[str, Future[Watched]]


@pytest.fixture(scope="module")
def watched(nsqd: Nsqd) -> Iterator[Scenes]:
    with ThreadPoolExecutor(len(SCENARIOS)) as pool, contextlib.ExitStack() as open_sessions:
        futures = {}
        for name, scenario in SCENARIOS.items():
            session = Session(RawClient(nsqd.tcp_port))
            open_sessions.callback(session.close)
            futures[name] = pool.submit(scenario, session)
        yield futures
        for future in futures.values():
            future.exception()


def test_heartbeat_comes_every_interval(watched: Scenes) -> None:
    beats_s = watched["answers with NOP"].result().beats_s
    assert len(beats_s) >= 2
    assert INTERVAL_S <= beats_s[0] < INTERVAL_S + LATE_S
    for earlier_s, later_s in itertools.pairwise(beats_s):
        assert INTERVAL_S / 2 < later_s - earlier_s < INTERVAL_S + LATE_S


@pytest.mark.parametrize("answer", ["answers with NOP", "answers with PUB", "consumer"])
def test_any_command_keeps_the_connection(watched: Scenes, answer: str) -> None:
    scene = watched[answer].result()
    assert scene.alive
    assert len(scene.beats_s) >= 2


def test_default_interval_is_longer(watched: Scenes) -> None:
    scene = watched["answers without IDENTIFY"].result()
    assert scene.alive
    assert scene.seen == []


@pytest.mark.parametrize("scene_name", ["silent", "silent consumer", "unfinished line"])
def test_connection_without_a_command_is_closed_after_two_intervals(
    watched: Scenes, scene_name: str
) -> None:
    scene = watched[scene_name].result()
    assert scene.closed_s is not None
    assert 2 * INTERVAL_S - EARLY_S <= scene.closed_s < 2 * INTERVAL_S + LATE_S
    # Nothing but the answers to what was sent and the heartbeats: no word of farewell.
    assert {sighting.frame for sighting in scene.seen} == {OK, HEARTBEAT_FRAME}


def test_body_shares_the_deadline_of_its_line(watched: Scenes) -> None:
    scene = watched["unfinished body"].result()
    assert scene.closed_s is not None
    assert 2 * INTERVAL_S - EARLY_S <= scene.closed_s < 2 * INTERVAL_S + LATE_S


def test_disabled_heartbeats_have_no_deadline(watched: Scenes) -> None:
    scene = watched["disabled"].result()
    assert scene.alive
    assert [sighting.frame for sighting in scene.seen] == [OK]


def test_heartbeats_and_messages_share_a_connection(watched: Scenes) -> None:
    scene = watched["consumer"].result()
    kinds = [sighting.frame.type for sighting in scene.seen]
    assert kinds.count(FRAME_MESSAGE) == 5
    assert len(scene.beats_s) >= 2


def test_heartbeat_is_a_response_frame(watched: Scenes) -> None:
    scene = watched["answers with NOP"].result()
    assert next(s.frame for s in scene.seen if s.frame != OK) == (0, b"_heartbeat_")


@pytest.mark.deviation
def test_consumer_that_does_not_read_is_dropped(nsqd: Nsqd, topic: str) -> None:
    """It sends commands all the while, so only the blocked writes can end it.

    The original stops delivering and sending heartbeats to it then, but leaves it connected.
    """
    session = Session(RawClient(nsqd.tcp_port))
    session.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    session.subscribe(topic, "ch", heartbeat_interval=1000)
    producer = Session(RawClient(nsqd.tcp_port))
    for _ in range(4):
        assert producer.request(mpub(topic, [b"x" * 1_000_000] * 5)) == OK
    session.send(rdy(20))
    deadline_s = time.monotonic() + 10.0
    with contextlib.suppress(ConnectionError):
        while nsqd.channel_stats(topic, "ch")["client_count"]:
            assert time.monotonic() < deadline_s, "still connected"
            session.send(b"NOP\n")
            time.sleep(0.1)
    await_channel(nsqd, topic, "ch", client_count=0)
    session.close()
    producer.close()
