"""Some hundred histories of an archive on nodes that come and go, with kills at any step of a
batch: table + quarantine + repeats = published.

`make sim-pipelines` plays other seeds. README.md says how to read what a failing seed prints.
"""

import pytest

from tests.kit.sim.pipelines.actions import generate
from tests.kit.sim.pipelines.command import report
from tests.kit.sim.pipelines.simulation import play

SEEDS = 200
GROUPS = 8  # tests, which workers share among them


@pytest.mark.slow
@pytest.mark.parametrize("first", range(GROUPS))
def test_every_message_is_archived_once_whichever_node_is_away(first: int) -> None:
    for seed in range(first, SEEDS, GROUPS):
        history = generate(seed)
        played = play(history)
        assert not played.faults, report(history, played)


# A node that was put back to a backup, and had fewer messages than were read: with
# failOnDataLoss=false, what was published since was left out. A first batch that was interrupted
# could not go on when its node had another name. A topic that was deleted before its first batch
# was lost in silence.
FOUND = (202, 452)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_left_out_once_is_left_out_no_more(seed: int) -> None:
    history = generate(seed)
    played = play(history)
    assert not played.faults, report(history, played)


def test_the_same_history_has_the_same_outcome() -> None:
    history = generate(7)
    assert play(history) == play(history)
