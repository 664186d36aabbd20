"""`nodes/absence.py`: which of the expected nodes are missing, and how that is reported."""

import pytest

from pyspark_nsq.errors import NotAllRead
from pyspark_nsq.nodes.absence import absent, require_nodes
from pyspark_nsq.nodes.nodes import LogState, Survey
from pyspark_nsq.nodes.positions import Position, Positions
from pyspark_nsq.options import ReadOptions, parse_read


def survey(*logs: LogState, silent: dict[str, str] | None = None) -> Survey:
    found = Survey(silent=silent or {})
    for state in logs:
        found.logs[state.key] = state
        found.names[state.node] = state.address
    return found


def state(node: str, *, topic: str = "t", log: str = "") -> LogState:
    address = f"http://{node}"
    return LogState(
        topic=topic, node=node, address=address, log=log or node, first=0, end=5, bytes=1
    )


def at(topic: str = "t", **offsets: int) -> Positions:
    return {(topic, node): Position(node, offset) for node, offset in offsets.items()}


def options(**said: str) -> ReadOptions:
    return parse_read({"lookupd": "l:4161", "subscribePattern": "t.*", **said}, streaming=True)


def test_a_node_that_nobody_lists_is_absent() -> None:
    assert absent(survey(state("a")), at(a=5, b=7), options()) == at(b=7)
    assert absent(survey(), at(a=5), options()) == at(a=5)


def test_a_node_with_a_new_name_is_known_by_the_id_of_its_log() -> None:
    assert absent(survey(state("new", log="old")), at(old=5), options()) == {}


def test_a_node_that_answers_without_the_topic_is_not_absent() -> None:
    assert absent(survey(state("a", topic="t2")), at(a=5), options()) == {}


def test_a_topic_that_is_not_wanted_expects_no_node() -> None:
    assert absent(survey(), at("other", a=5), options()) == {}


def test_the_error_names_the_nodes_what_is_known_of_them_and_the_option() -> None:
    found = survey(state("a"), silent={"http://h:4151": "http://h:4151 does not answer: refused"})
    with pytest.raises(NotAllRead) as raised:
        require_nodes(found, at(a=5, b=1234), options())
    assert str(raised.value) == (
        "not all is read: http://h:4151 does not answer: refused; b is away, or the topic was "
        "deleted there (topic t is read up to 1,234); --without-node h:4151,b (in Spark the option "
        "withoutNode) continues without"
    )


def test_of_a_node_with_many_topics_some_are_named() -> None:
    known = {(f"t{number}", "b"): Position("x", number) for number in range(500)}
    with pytest.raises(NotAllRead, match=r"\(topic t0 [^,]*, topic t1 [^,]*, [^,]*, 497 more\)"):
        require_nodes(survey(), known, options())


def test_nodes_that_may_be_missing_are_no_error() -> None:
    found = survey(state("a:1"), silent={"https://h:4151": "does not answer"})
    known = {("t", "b:4150"): Position("b", 1)}
    require_nodes(found, known, options(withoutNode="https://h:4151, b:4150"))
    with pytest.raises(NotAllRead, match="--without-node b:4150 "):
        require_nodes(found, known, options(withoutNode="h:4151"))
