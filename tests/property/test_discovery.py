"""Which nsqds are known, whatever nsqlookupds say, and whether they answer at all."""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pumpline.client.discovery import STALE_POLLS, Sightings

LOOKUPDS = ("a", "b", "c")
NODES = st.frozensets(st.sampled_from(["1", "2", "3", "4"]))
ANSWERS = st.fixed_dictionaries({name: st.none() | NODES for name in LOOKUPDS})


class DiscoveryMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.sightings = Sightings()
        self.last: dict[str, frozenset[str]] = {}  # the last valid answer of each
        self.ever: set[str] = set()

    @rule(answers=ANSWERS, early=st.booleans())
    def poll(self, answers: dict[str, frozenset[str] | None], early: bool) -> None:
        before = set(self.sightings.nodes)
        for name, answer in answers.items():
            if answer is not None:
                self.last[name] = answer
                self.ever |= answer
                if early:  # as soon as it is there, the others still being asked
                    self.sightings.add(answer)
                    assert before <= self.sightings.nodes
        self.sightings.merge(answers)
        if all(answer is None for answer in answers.values()):
            assert self.sightings.nodes == before, "nothing was learnt"

    @rule(answers=st.fixed_dictionaries(dict.fromkeys(LOOKUPDS, NODES)))
    def settle(self, answers: dict[str, frozenset[str]]) -> None:
        """The same answers for a while: the nodes are those of a fresh start."""
        fresh = Sightings()
        for _ in range(STALE_POLLS):
            self.poll(dict(answers), early=False)
            fresh.merge(answers)
        assert self.sightings.nodes == fresh.nodes == set().union(*answers.values())

    @invariant()
    def who_is_named_is_known(self) -> None:
        """One that does not answer counts as saying what it said last."""
        assert set().union(*self.last.values()) <= self.sightings.nodes

    @invariant()
    def nobody_is_invented(self) -> None:
        assert self.sightings.nodes <= self.ever


TestDiscovery = DiscoveryMachine.TestCase
