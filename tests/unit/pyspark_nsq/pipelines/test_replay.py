"""`pipelines/replay.py`: the plan of a replay, and the order of its steps."""

from pyspark_nsq.pipelines.replay import ReplayPlan, ReplayRange


def plan(done: int) -> ReplayPlan:
    ranges = [ReplayRange("t", node, 5, 5 + count) for node, count in (("a", 25), ("b", 30))]
    return ReplayPlan("id", [*ranges, ReplayRange("t", "c", 0, 7)], 10, done)


def test_the_steps_of_a_node_that_is_away_come_last_and_are_cut_as_before() -> None:
    for done in range(8):
        before = plan(done)
        steps = list(before.steps())
        before.put_last({("t", "a")})
        after = list(before.steps())
        assert sorted(after, key=steps.index) == steps
        assert after == sorted(steps, key=lambda step: step.node == "a")
        assert (before.done, before.offsets()) == (done, 62)


def test_a_plan_is_put_in_order_as_often_as_nodes_are_away() -> None:
    changed = plan(1)
    changed.put_last({("t", "a")})
    changed.done += 2
    changed.put_last({("t", "b")})
    assert [(step.node, step.start) for step in changed.steps()] == [
        ("c", 0),
        ("a", 15),
        ("a", 25),
        ("b", 25),
    ]
