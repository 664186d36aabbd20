"""Finished spans against a plain set of offsets."""

import itertools

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pumpline.core.messages.finished import Finished

OFFSETS_MAX = 40


class FinishedMachine(RuleBasedStateMachine):
    @initialize(low=st.integers(0, 5))
    def begin(self, low: int) -> None:
        self.finished = Finished(low)
        self.model = set(range(low))

    @rule(start=st.integers(0, OFFSETS_MAX), length=st.integers(1, 8))
    def add(self, start: int, length: int) -> None:
        """Any span, cut down to what was not finished before."""
        for a, b in self.finished.gaps(start, start + length):
            self.finished.add(a, b)
        self.model.update(range(start, start + length))

    @rule(start=st.integers(0, OFFSETS_MAX), end=st.integers(0, OFFSETS_MAX + 10))
    def gaps(self, start: int, end: int) -> None:
        gaps = self.finished.gaps(start, end)
        expected = [o for o in range(start, end) if o not in self.model]
        assert [o for a, b in gaps for o in range(a, b)] == expected
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(gaps))

    @rule(start=st.integers(0, OFFSETS_MAX), end=st.integers(0, OFFSETS_MAX + 10))
    def count(self, start: int, end: int) -> None:
        expected = sum(o in self.model for o in range(start, end))
        assert self.finished.count(start, end) == expected

    @invariant()
    def the_mark_is_the_first_offset_not_finished(self) -> None:
        low = next(o for o in range(OFFSETS_MAX + 20) if o not in self.model)
        assert self.finished.low == low

    @invariant()
    def spans_are_joined_and_in_order(self) -> None:
        spans = self.finished.spans()
        assert all(a < b for a, b in spans)
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(spans))
        assert all(a > self.finished.low for a, _ in spans)

    @invariant()
    def every_offset_is_where_the_set_has_it(self) -> None:
        above = [o for o in sorted(self.model) if o >= self.finished.low]
        assert [o for a, b in self.finished.spans() for o in range(a, b)] == above
        assert self.finished.above == len(above)
        assert {o for o in range(OFFSETS_MAX + 20) if o in self.finished} == self.model


TestFinished = FinishedMachine.TestCase
