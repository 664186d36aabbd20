"""`nodes/workers.py`: a node that is late delays one call, and its answer is not lost."""

from collections.abc import Iterator
from threading import Event

import pytest

from pyspark_nsq.errors import NsqError, Unreachable
from pyspark_nsq.nodes.workers import NodeWorkers


@pytest.fixture
def workers() -> Iterator[NodeWorkers]:
    found = NodeWorkers()
    yield found
    found.close()


def test_all_answers_are_there_and_failures_are_by_node(workers: NodeWorkers) -> None:
    def work(address: str) -> str:
        if address == "b":
            raise Unreachable("b is away")
        return address.upper()

    answers = workers.at_once("abc", work, kind="k")
    assert answers.pop("b").args == ("b is away",)  # type: ignore[union-attr]
    assert answers == {"a": "A", "c": "C"}


def test_other_errors_are_raised(workers: NodeWorkers) -> None:
    def work(address: str) -> str:
        raise NsqError(address)

    with pytest.raises(NsqError, match=r"^a$"):
        workers.at_once("a", work, kind="k")


def test_a_late_node_is_not_waited_for_again_and_its_answer_is_taken(workers: NodeWorkers) -> None:
    gate, asked = Event(), []

    def work(address: str) -> int:
        asked.append(address)
        if address == "late":
            gate.wait()
        return len(asked)

    nodes = ("prompt", "late")
    first = workers.at_once(nodes, work, kind="k", patience_s=0.01)
    assert isinstance(first["late"], Unreachable) and first["prompt"] != first["late"]
    second = workers.at_once(nodes, work, kind="k", patience_s=3600)  # does not wait so long
    assert isinstance(second["late"], Unreachable)
    assert asked.count("late") == 1
    gate.set()
    found = second["late"]
    while isinstance(found, Unreachable):
        found = workers.at_once(nodes, work, kind="k", patience_s=0.01)["late"]
    assert asked.count("late") == 1
    assert isinstance(workers.at_once(nodes, work, kind="k")["late"], int)
    assert asked.count("late") == 2


def test_a_patient_call_waits_for_a_late_node(workers: NodeWorkers) -> None:
    gate = Event()

    def work(address: str) -> bool:
        return gate.wait()

    assert isinstance(workers.at_once("a", work, kind="k", patience_s=0)["a"], Unreachable)
    gate.set()
    assert workers.at_once("a", work, kind="k")["a"] is True
