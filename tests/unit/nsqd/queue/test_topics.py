"""The topics of an nsqd: what they promise together."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topics import Topics
from tests.kit.fake_broker import FakeBroker

MESSAGES = 1_000_000  # of each log; its ids must not meet those of another
LOGS = 50  # of each kind


def new_topics(path: Path, node_id: int) -> Topics:
    """An nsqd's topics on a clock that stands still: nothing is told apart by its time."""
    path.mkdir()
    broker = FakeBroker(path, Options(node_id=node_id))
    return Topics(broker.options, broker.tick, broker.disk)


@pytest.mark.parametrize("node_ids", [(7, 7), (7, 8)], ids=["same node", "other nodes"])
def test_no_log_shares_an_id_with_another(tmp_path: Path, node_ids: tuple[int, int]) -> None:
    bases = []
    for number, node_id in enumerate(node_ids):
        topics = new_topics(tmp_path / str(number), node_id)
        for name in names():
            bases.append(topics.topic(name).log.base_id)
            topics.delete(name)
            bases.append(topics.topic(name).log.base_id)  # made anew
    assert len(bases) == 8 * LOGS
    bases.sort()
    assert all(other - base >= MESSAGES for base, other in pairwise(bases))
    assert bases[0] >= 0
    assert bases[-1] < 1 << 63


def test_a_log_keeps_its_ids_over_a_restart(tmp_path: Path) -> None:
    topics = new_topics(tmp_path / "data", 7)
    base_id = topics.topic("t").log.base_id
    again = Topics(topics.options, topics.tick, topics.disk)
    again.load()
    assert again["t"].log.base_id == base_id


def names() -> Iterator[str]:
    for number in range(LOGS):
        yield f"t{number}"
        yield f"t{number}#ephemeral"
