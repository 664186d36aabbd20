"""`nodes/absence.py`: which of the expected nodes are missing, and how that is reported."""

import pytest

from pyspark_nsq.errors import NotAllRead, Unreachable
from pyspark_nsq.nodes.absence import absent, require_complete
from pyspark_nsq.nodes.directory import NamedNode
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
        require_complete(found, options(), at(a=5, b=1234))
    assert str(raised.value) == (
        "not all is read: http://h:4151 does not answer: refused; b is away, or the topic was "
        "deleted there (topic t is read up to 1,234); --without-node h:4151,b (in Spark the option "
        "withoutNode) continues without"
    )


def test_of_a_node_with_many_topics_some_are_named() -> None:
    known = {(f"t{number}", "b"): Position("x", number) for number in range(500)}
    with pytest.raises(NotAllRead, match=r"\(topic t0 [^,]*, topic t1 [^,]*, [^,]*, 497 more\)"):
        require_complete(survey(), options(), known)


def test_nodes_that_may_be_missing_are_no_error() -> None:
    found = survey(state("a:1"), silent={"https://h:4151": "does not answer"})
    known = {("t", "b:4150"): Position("b", 1)}
    require_complete(found, options(withoutNode="https://h:4151, b:4150"), known)
    with pytest.raises(NotAllRead, match="--without-node b:4150 "):
        require_complete(found, options(withoutNode="h:4151"), known)


LOST = NamedNode("http://h:4151", "h:4150", 1794999603_000000000)


def lost_survey(*logs: LogState) -> Survey:
    found = survey(*logs, silent={LOST.address: "refused"})
    found.lost[LOST.address] = LOST
    return found


def test_a_node_that_nsqlookupd_has_lost_is_missing_since_then() -> None:
    with pytest.raises(NotAllRead) as raised:
        require_complete(lost_survey(state("a")), options())
    assert str(raised.value) == (
        "not all is read: h:4150 is away since 2026-11-18T11:00:03Z; --without-node h:4150 (in "
        "Spark the option withoutNode) continues without"
    )
    known = {("t", "h:4150"): Position("x", 1234)}
    with pytest.raises(NotAllRead, match=r"since 2026-11-18T11:00:03Z \(topic t .* 1,234\); -"):
        require_complete(lost_survey(state("a")), options(), known)
    for name in ("h:4150", "h:4151"):
        require_complete(lost_survey(state("a")), options(withoutNode=name))


def test_a_lost_node_that_answers_is_not_missing() -> None:
    found = lost_survey(state("a"))
    found.silent.clear()
    require_complete(found, options())
    require_complete(lost_survey(state("h:4150")), options())  # with another HTTP port


def test_a_lost_node_whose_logs_are_elsewhere_has_moved() -> None:
    known = {("t", "h:4150"): Position("x", 5), ("t2", "h:4150"): Position("y", 5)}
    both = (state("new", log="x"), state("new", topic="t2", log="y"))
    require_complete(lost_survey(*both), options(), known)
    with pytest.raises(NotAllRead, match="h:4150 is away since"):
        require_complete(lost_survey(both[0]), options(), known)


def test_so_many_nodes_must_answer_as_are_expected() -> None:
    found = survey(state("a"), state("b"))
    require_complete(found, options(expectNodes="2"))
    with pytest.raises(NotAllRead, match="expectNodes is 3, but 2 answer: a, b; a smaller"):
        require_complete(found, options(expectNodes="3"))


def test_nobody_knows_which_nodes_there_are_without_an_nsqlookupd() -> None:
    found = survey(state("a"))
    found.undirected = "http://l:4161 does not answer"
    with pytest.raises(Unreachable, match="no nsqlookupd can be asked: http://l:4161"):
        require_complete(found, options(nsqd="a:4151"))
