"""A sweep finds what is consumed wherever it is, and never holds the event loop for long."""

from pumpline.nsqd.queue.history_sweep import SLICE_S, TOPICS_MIN, HistorySweep

VISIT_S = 0.001
COUNT = 1000


class FakeTopics:
    """Topics, each of which takes a while to look at."""

    def __init__(self, count: int) -> None:
        self.now_s = 0.0
        self.visits: list[int] = []
        self.consumed: set[int] = set()
        topics = {str(number): number for number in range(count)}
        self.sweep = HistorySweep(topics, drop=self.drop, clock_s=lambda: self.now_s)

    def drop(self, number: int) -> bool:
        self.now_s += VISIT_S
        self.visits.append(number)
        consumed = number in self.consumed
        self.consumed.discard(number)
        return consumed

    def run(self) -> bool:
        self.visits.clear()
        return self.sweep.run()


def test_a_run_over_few_topics_sees_all_of_them() -> None:
    topics = FakeTopics(TOPICS_MIN)
    topics.consumed = {TOPICS_MIN - 1}
    assert topics.run()
    assert topics.visits == list(range(TOPICS_MIN))


def test_a_run_that_finds_much_is_bounded() -> None:
    topics = FakeTopics(TOPICS_MIN)
    topics.consumed = set(range(TOPICS_MIN))
    assert topics.run()
    assert len(topics.visits) <= SLICE_S / VISIT_S + 1


def test_a_run_over_many_topics_is_bounded_and_the_next_goes_on() -> None:
    topics = FakeTopics(COUNT)
    topics.consumed = {COUNT - 1}
    seen: list[int] = []
    while not topics.run():
        assert len(topics.visits) == max(TOPICS_MIN, SLICE_S / VISIT_S)
        seen += topics.visits
    assert sorted(seen + topics.visits) == list(range(COUNT))


def test_a_walk_that_found_nothing_is_not_repeated_at_once() -> None:
    topics = FakeTopics(COUNT)
    while not topics.visits or topics.visits[-1] != COUNT - 1:
        assert not topics.run()
    topics.consumed = {5}
    assert not topics.run()
    assert topics.visits == []
    topics.now_s += 11 * COUNT * VISIT_S
    assert topics.run()


def test_a_sweep_without_topics_finds_nothing() -> None:
    assert not FakeTopics(0).run()


def test_a_topic_whose_history_cannot_be_deleted_does_not_stop_the_sweep() -> None:
    topics = FakeTopics(3)
    topics.consumed = {2}

    def drop(number: int) -> bool:
        if number == 0:
            raise OSError("it stays")
        return topics.drop(number)

    by_name = {"0": 0, "2": 2}
    assert HistorySweep(by_name, drop=drop, clock_s=lambda: topics.now_s).run()
