"""Heartbeats by a clock that is moved by hand: when one is sent, and when a client is given up."""

from collections import Counter
from collections.abc import Callable

import pytest

from pumpline.nsqd.protocol.heartbeat import SILENT, SLOW, Heartbeat
from tests.kit.fake_broker import NS_PER_S, Clock, Handle

INTERVAL_MS = 1000


class Loop:
    """As much of an event loop as a heartbeat needs."""

    def __init__(self) -> None:
        self.clock = Clock()

    def time(self) -> float:
        return self.clock.passed_ns / NS_PER_S

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Handle:
        return self.clock.later(at_s - self.time(), callback)


class Client:
    peer = "127.0.0.1:1"
    blocked = False
    is_kept_waiting = False

    def __init__(self, loop: Loop) -> None:
        self.heard_s = 0.0
        self.beats_s: list[float] = []
        self.closed_s: float | None = None
        self._loop = loop

    def beat(self) -> None:
        self.beats_s.append(self._loop.time())

    def close(self) -> None:
        self.closed_s = self._loop.time()


class Scene:
    def __init__(self) -> None:
        self.loop = Loop()
        self.client = Client(self.loop)
        self.dropped: Counter[str] = Counter()
        self.heartbeat = Heartbeat(self.client, self.loop, self.dropped)  # type: ignore[arg-type]

    def pass_s(self, seconds: float) -> None:
        self.loop.clock.advance(seconds, lambda: None)

    def say_something(self) -> None:
        self.client.heard_s = self.loop.time()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_client_that_answers_is_sent_one_every_interval(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    for _ in range(5):
        scene.pass_s(1)
        scene.say_something()
    assert scene.client.beats_s == [1, 2, 3, 4, 5]
    assert scene.client.closed_s is None


def test_a_silent_client_is_given_up_after_two_intervals(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.pass_s(0.5)
    scene.say_something()
    scene.pass_s(1.9)
    assert scene.client.closed_s is None
    scene.pass_s(0.1)
    assert (scene.client.closed_s, scene.client.beats_s) == (2.5, [1, 2])
    assert scene.dropped == {SILENT: 1}


def test_a_client_that_is_kept_waiting_need_not_say_anything(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.client.is_kept_waiting = True
    scene.pass_s(10)
    assert scene.client.closed_s is None
    scene.client.is_kept_waiting = False
    scene.pass_s(2)
    assert scene.client.closed_s == 12


def test_a_client_that_takes_nothing_for_an_interval_is_given_up(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.pass_s(0.5)
    scene.client.blocked = True
    scene.pass_s(0.5)
    scene.say_something()
    assert (scene.client.closed_s, scene.client.beats_s) == (None, [])
    scene.pass_s(1)
    assert scene.client.closed_s == 2
    assert scene.dropped == {SLOW: 1}


def test_a_client_that_takes_something_now_and_then_stays(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    for number in range(6):
        scene.client.blocked = number % 2 == 0
        scene.pass_s(1)
        scene.say_something()
    assert scene.client.closed_s is None
    assert scene.client.beats_s == [2, 4, 6]


def test_another_interval_counts_from_when_it_is_said(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.pass_s(0.5)
    scene.say_something()
    scene.heartbeat.start(3 * INTERVAL_MS)
    scene.pass_s(5.9)
    assert (scene.client.closed_s, scene.client.beats_s) == (None, [3.5])
    scene.pass_s(0.1)
    assert scene.client.closed_s == 6.5


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_without_an_interval_nobody_is_given_up(scene: Scene, interval_ms: int) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.heartbeat.start(interval_ms)
    scene.pass_s(1000)
    assert (scene.client.closed_s, scene.client.beats_s) == (None, [])


def test_a_stopped_one_does_nothing_more(scene: Scene) -> None:
    scene.heartbeat.start(INTERVAL_MS)
    scene.pass_s(1)
    scene.heartbeat.stop()
    scene.pass_s(1000)
    assert (scene.client.closed_s, scene.client.beats_s) == (None, [1])
