"""A tick does its steps in order, and everything at most once."""

from collections.abc import Callable
from typing import NoReturn

import pytest

from pumpline.nsqd.queue.tick import Tick


class Part:
    """A commit, channel or connection that notes when it is called, and may then do more."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.then: Callable[[], None] = lambda: None

    def _called(self, step: str) -> None:
        self.calls.append(f"{step} {self.name}")
        then, self.then = self.then, lambda: None
        then()

    def commit(self) -> None:
        self._called("commit")

    def dispatch(self) -> None:
        self._called("dispatch")

    def flush(self) -> None:
        self._called("flush")


class Clock:
    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return 1000 + self.reads


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def soon() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def tick(soon: list[Callable[[], None]]) -> Tick:
    def later(delay_s: float, callback: Callable[[], None]) -> NoReturn:
        raise AssertionError("a tick sets no timers")

    return Tick(soon.append, later=later, steady_clock=Clock(), wall_clock=Clock())


def test_the_first_announcement_schedules_the_tick_and_no_other(
    tick: Tick, soon: list[Callable[[], None]], calls: list[str]
) -> None:
    part = Part("a", calls)
    assert soon == []
    tick.write(part)
    tick.dispatch(part)
    tick.publish()
    tick.write(part)
    assert len(soon) == 1
    assert calls == []


def test_the_steps_come_in_order_whatever_the_order_of_announcement(
    tick: Tick, soon: list[Callable[[], None]], calls: list[str]
) -> None:
    a, b = Part("a", calls), Part("b", calls)
    tick.commit = Part("all", calls).commit
    for part in (b, a, b):
        tick.write(part)
        tick.dispatch(part)
        tick.publish()
    soon.pop()()
    assert calls == ["commit all", "dispatch b", "dispatch a", "flush b", "flush a"]
    assert soon == []


def test_what_a_step_announces_is_done_in_the_same_tick_if_its_step_is_to_come(
    tick: Tick, soon: list[Callable[[], None]], calls: list[str]
) -> None:
    commit, channel, connection = (Part(name, calls) for name in ("all", "c", "x"))
    tick.commit = commit.commit
    commit.then = lambda: tick.dispatch(channel)
    channel.then = lambda: tick.write(connection)
    tick.publish()
    soon.pop()()
    assert calls == ["commit all", "dispatch c", "flush x"]
    assert soon == []


def test_what_comes_too_late_is_done_in_the_next_tick(
    tick: Tick, soon: list[Callable[[], None]], calls: list[str]
) -> None:
    channel, connection = Part("c", calls), Part("x", calls)
    tick.commit = Part("all", calls).commit
    channel.then = lambda: tick.dispatch(channel)
    connection.then = tick.publish
    tick.dispatch(channel)
    tick.write(connection)
    soon.pop()()
    assert calls == ["dispatch c", "flush x"]
    assert len(soon) == 1
    soon.pop()()
    assert calls == ["dispatch c", "flush x", "commit all", "dispatch c"]
    assert soon == []


def test_a_step_that_fails_stops_neither_the_others_nor_the_next_tick(
    tick: Tick,
    soon: list[Callable[[], None]],
    calls: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("so it goes")

    a, b = Part("a", calls), Part("b", calls)
    tick.commit = a.commit
    a.then = fail
    tick.publish()
    tick.dispatch(b)
    soon.pop()()
    for announce in (tick.dispatch, tick.write):
        a.then = fail
        announce(a)
        announce(b)
        soon.pop()()
    assert calls == ["commit a", "dispatch b", "dispatch a", "dispatch b", "flush a", "flush b"]
    assert len(caplog.records) == 3
    tick.write(a)
    assert len(soon) == 1


def test_the_clocks_stand_still_from_the_first_reading_until_the_tick_has_run(
    tick: Tick, soon: list[Callable[[], None]], calls: list[str]
) -> None:
    before = tick.steady_ns
    assert tick.steady_ns > before
    part = Part("a", calls)
    tick.commit = part.commit
    tick.publish()
    steady_ns, wall_ns = tick.steady_ns, tick.wall_ns
    part.then = lambda: calls.append(f"{tick.steady_ns == steady_ns} {tick.wall_ns == wall_ns}")
    soon.pop()()
    assert calls == ["commit a", "True True"]
    assert tick.steady_ns > steady_ns
    assert tick.wall_ns > wall_ns


def test_a_date_is_not_early_though_work_lies_between_two_looks_at_the_clocks() -> None:
    passed_ns = 0
    soon: list[Callable[[], None]] = []

    def later(delay_s: float, callback: Callable[[], None]) -> NoReturn:
        raise AssertionError("a tick sets no timers")

    tick = Tick(
        soon.append,
        later=later,
        steady_clock=lambda: 5_000 + passed_ns,
        wall_clock=lambda: 90_000 + passed_ns,
    )
    tick.publish()
    assert tick.steady_ns == 5_000
    passed_ns = 300
    assert 91_000 + tick.steady_shift_ns(81_000) == 6_000
    assert 101_000 + tick.steady_shift_ns(91_000) == 15_000  # a date before the publish
