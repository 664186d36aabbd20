"""What a run with --once did not read, from the nodes' answers and the checkpoint."""

from pyspark_nsq.nodes.nodes import LogState, Survey
from pyspark_nsq.nodes.positions import Position, Positions
from pyspark_nsq.pipelines.running.unread import unread


def survey(*logs: LogState, silent: dict[str, str] | None = None) -> Survey:
    found = Survey(silent=silent or {})
    for state in logs:
        found.logs[state.key] = state
        found.names[state.node] = state.address
    return found


def state(node: str, *, end: int, log: str = "") -> LogState:
    address = f"http://{node}"
    return LogState(
        topic="t", node=node, address=address, log=log or node, first=0, end=end, bytes=1
    )


def at(**offsets: int) -> Positions:
    return {("t", node): Position(node, offset) for node, offset in offsets.items()}


def test_a_run_that_read_all_there_was_has_nothing_to_say() -> None:
    assert unread(survey(state("a", end=5), state("b", end=0)), at(a=7, b=0)) == []


def test_a_node_that_does_not_answer_is_named_with_the_places_of_its_logs() -> None:
    found = survey(state("a", end=5), silent={"http://b": "http://b does not answer: refused"})
    assert unread(found, at(a=5, b=1234)) == [
        "http://b does not answer: refused",
        "topic t on b: nothing beyond 1,234 is read",
    ]


def test_no_node_at_all_is_not_all_read() -> None:
    assert unread(survey(), at(a=5)) == [
        "no node is known",
        "topic t on a: nothing beyond 5 is read",
    ]


def test_a_log_that_was_read_in_part_or_not_at_all_is_named() -> None:
    assert unread(survey(state("a", end=5000), state("b", end=1)), at(a=4000)) == [
        "topic t on a: read up to 4,000, of 5,000",
        "topic t on b: nothing is read",
    ]


def test_a_node_that_was_taken_away_for_good_is_no_error_while_all_others_are_read() -> None:
    assert unread(survey(state("a", end=5)), at(a=5, gone=7)) == []


def test_a_log_is_known_by_its_id_when_its_node_has_a_new_name() -> None:
    assert unread(survey(state("new", end=5, log="old")), at(old=5)) == []


def test_a_stream_that_began_at_the_end_and_an_empty_log_have_no_position() -> None:
    assert unread(survey(state("a", end=5)), {}) == []
    assert unread(survey(state("a", end=5), state("b", end=0)), at(a=5)) == []
