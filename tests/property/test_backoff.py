"""The backoff machine against its rules, on a virtual clock."""

from itertools import count

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pumpline.client.consuming.backoff import RECENT, Backoff, BackoffPhase


class BackoffMachine(RuleBasedStateMachine):
    @initialize(
        multiplier_s=st.sampled_from([0.1, 1.0, 7.0]),
        wait_max_s=st.sampled_from([0.0, 1.0, 15.0, 120.0]),
        jitter=st.sampled_from([None, 0.0, 0.5, 0.999]),
    )
    def begin(self, multiplier_s: float, wait_max_s: float, jitter: float | None) -> None:
        self.multiplier_s = multiplier_s
        self.wait_max_s = wait_max_s
        self.jitter = jitter
        self.now = 0.0
        self.backoff = Backoff(
            multiplier_s=multiplier_s,
            wait_max_s=wait_max_s,
            jitter=None if jitter is None else (lambda: jitter),
        )
        self.recent: list[bytes | None] = []  # since it was open, the newest last

    def must_back_off(self) -> bool:
        last = self.recent[-RECENT:]
        failed = {each for each in last if each is not None}
        return len(failed) >= 2 and 2 * len(failed) > len(last) and self.wait_max_s > 0

    @rule(
        outcome=st.sampled_from(["succeeded", "failed", "passed"]),
        message_id=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"]),
        count=st.integers(1, 12),
    )
    def answer(self, outcome: str, message_id: bytes, count: int) -> None:
        before = (self.backoff.phase, self.backoff.level, self.backoff.ends_at)
        phase, level, _ = before
        if phase is BackoffPhase.OPEN and outcome == "succeeded":
            self.recent += [None] * count
        is_new = message_id not in self.recent[-RECENT:]
        if phase is BackoffPhase.OPEN and outcome == "failed" and is_new:
            self.recent.append(message_id)
        if outcome == "succeeded":
            self.backoff.succeeded(count, self.now)
        elif outcome == "failed":
            self.backoff.failed(message_id, self.now)
        else:
            self.backoff.passed(self.now)
        after = (self.backoff.phase, self.backoff.level, self.backoff.ends_at)
        if phase is BackoffPhase.OPEN and outcome == "failed" and self.must_back_off():
            assert (self.backoff.phase, self.backoff.level) == (BackoffPhase.WAITING, 1)
        elif phase in (BackoffPhase.WAITING, BackoffPhase.OPEN):
            assert after == before
        elif outcome == "succeeded":
            assert self.backoff.level == level - 1
            assert self.backoff.phase is (BackoffPhase.WAITING if level > 1 else BackoffPhase.OPEN)
        elif outcome == "passed":
            assert self.backoff.level == level
            assert self.backoff.phase is BackoffPhase.WAITING
        elif self.wait_max_s:
            assert self.backoff.level in (level, level + 1)
            assert self.backoff.level >= 1
            assert self.backoff.phase is BackoffPhase.WAITING

    @rule(seconds=st.sampled_from([0.0, 0.05, 1.0, 30.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        was_waiting = self.backoff.phase is BackoffPhase.WAITING
        self.now += seconds
        is_over = was_waiting and self.now >= self.backoff.ends_at
        before = self.backoff.phase
        self.backoff.elapse(self.now)
        assert self.backoff.phase is (BackoffPhase.PROBING if is_over else before)

    @rule()
    def recover(self) -> None:
        """After any history, as many successes as the counter says open it again."""
        for _ in range(self.backoff.level):
            self.now = max(self.now, min(self.backoff.ends_at, self.now + self.wait_max_s))
            self.backoff.elapse(self.now)
            self.backoff.succeeded(1, self.now)
        assert self.backoff.phase is BackoffPhase.OPEN
        assert self.backoff.level == 0

    @invariant()
    def open_means_level_0(self) -> None:
        assert (self.backoff.phase is BackoffPhase.OPEN) == (self.backoff.level == 0)
        if self.backoff.level:
            self.recent = []

    @invariant()
    def calm_means_that_no_recent_answer_was_a_failure(self) -> None:
        if self.backoff.is_calm and self.wait_max_s:
            assert self.recent[-RECENT:] == [None] * RECENT

    @invariant()
    def the_wait_follows_the_formula(self) -> None:
        if self.backoff.phase is BackoffPhase.WAITING:
            wait_s = self.backoff.ends_at - self.now
            full_s = min(self.multiplier_s * 2**self.backoff.level, self.wait_max_s)
            assert wait_s <= full_s * (1 if self.jitter is None else self.jitter) + 1e-9

    @invariant()
    def the_counter_stops_before_waits_get_longer_than_the_longest(self) -> None:
        level = self.backoff.level
        assert level <= 1 or self.multiplier_s * 2**level <= self.wait_max_s

    @invariant()
    def a_longest_wait_of_0_means_never(self) -> None:
        if self.wait_max_s == 0:
            assert self.backoff.phase is BackoffPhase.OPEN


TestBackoff = BackoffMachine.TestCase


def test_failures_wait_2_4_8_to_64_seconds_and_successes_come_back_down() -> None:
    backoff = Backoff()
    now, waits = 0.0, []
    ids = (b"%d" % number for number in count())
    backoff.failed(next(ids), now)
    assert backoff.phase is BackoffPhase.OPEN  # one message alone

    def probe(outcome: str) -> None:
        nonlocal now
        if outcome == "failed":
            backoff.failed(next(ids), now)
        else:
            backoff.succeeded(1, now)
        if backoff.phase is BackoffPhase.WAITING:
            waits.append(backoff.ends_at - now)
            now = backoff.ends_at
            backoff.elapse(now)

    for _ in range(8):
        probe("failed")
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]
    waits.clear()
    for _ in range(6):
        probe("succeeded")
    assert waits == [32, 16, 8, 4, 2]
    assert backoff.phase is BackoffPhase.OPEN


def test_full_jitter_waits_a_random_part() -> None:
    backoff = Backoff(jitter=iter([0.25]).__next__)
    backoff.failed(b"a", 10.0)
    backoff.failed(b"b", 10.0)
    assert backoff.ends_at == 10.5


def test_six_of_ten_failures_after_successes_and_not_one_message_again_and_again() -> None:
    backoff = Backoff()
    backoff.succeeded(1000, 0.0)
    assert backoff.is_calm
    for number in range(5):
        backoff.failed(b"%d" % number, 0.0)
        assert backoff.phase is BackoffPhase.OPEN
    backoff.failed(b"4", 0.0)
    assert backoff.phase is BackoffPhase.OPEN
    backoff.failed(b"5", 0.0)
    assert backoff.phase is BackoffPhase.WAITING
