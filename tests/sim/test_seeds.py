"""Some hundred histories of a whole nsqd, with kills: nothing that the docs promise is broken.

`make sim` plays other seeds, for as long as you like. README.md says how to read what a failing
seed prints.
"""

import pytest

from tests.kit.sim.actions import generate
from tests.kit.sim.command import report
from tests.kit.sim.simulation import play

SEEDS = 156  # 1,000 kills in 20 s of a core
GROUPS = 12  # tests, which workers share among them


@pytest.mark.slow
@pytest.mark.parametrize("first", range(GROUPS))
def test_histories_keep_every_promise(first: int) -> None:
    for seed in range(first, SEEDS, GROUPS):
        history = generate(seed)
        played = play(history)
        assert not played.faults, report(history, played)


# What each of these once lost: messages of ids that came twice, of a gap that was not filled, of a
# stale mark (two ways), and of offsets that an earlier start had left out; a publish token;
# messages of offsets that were given out again, by a start on a full disk; and a gap that could not
# be noted counted as messages (twice); a direct write that was acknowledged before its fsync; and
# messages after a gap that the disk did not have (twice).
FOUND = (2040, 103, 1835, 21959, 21844, 13159, 110856, 111145, 202257, 140005, 3825, 304693, 309467)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_lost_once_is_not_lost_again(seed: int) -> None:
    history = generate(seed)
    played = play(history)
    assert not played.faults, report(history, played)


# A requeued message overtook one that waited for coalesced delivery: a flush had taken that from
# memory. In the last one the ledger was wrong: nobody consumed, so nothing was kept in memory.
OVERTOOK = (10584, 20624, 21684, 100164, 20097)


@pytest.mark.parametrize("seed", OVERTOOK)
def test_what_overtook_others_once_does_so_no_more(seed: int) -> None:
    history = generate(seed)
    played = play(history)
    assert not played.faults, report(history, played)


# A time led to a wrong offset: beside a segment that was all damage, and after the clock was set
# back between a publish and its flush; a reply described the log before its search, which
# flushed the log, or during which a full disk deleted history.
MISLED = (42, 74, 186, 630, 4066)


@pytest.mark.parametrize("seed", MISLED)
def test_a_time_that_once_led_astray_leads_to_its_message(seed: int) -> None:
    history = generate(seed)
    played = play(history)
    assert not played.faults, report(history, played)


# The ledger was wrong: a topic that is paused is not deleted with a refused publish, and nsqd.dat
# may bring one back if the disk failed and nsqd was killed.
STAYED = (301432, 300524)


@pytest.mark.parametrize("seed", STAYED)
def test_a_topic_may_outlive_its_refused_publish(seed: int) -> None:
    history = generate(seed)
    played = play(history)
    assert not played.faults, report(history, played)


def test_the_same_history_has_the_same_outcome() -> None:
    history = generate(7)
    assert play(history) == play(history)
