"""`nodes/directory.py`: the nodes in the answers of nsqlookupds."""

from pyspark_nsq.nodes.directory import NamedNode, merged, named_nodes


def entry(host: str = "n", **more: object) -> dict[str, object]:
    return {"broadcast_address": host, "tcp_port": 4150, "http_port": 4151, **more}


def anything(topic: str) -> bool:
    return True


def test_lost_nodes_are_named_with_the_time() -> None:
    answer = {"producers": [entry("a")], "lost": [entry("b", lost_at=1794999603_000000001)]}
    listed, lost = named_nodes(answer, anything)
    assert listed == NamedNode("http://a:4151", "a:4150")
    assert (lost.name, lost.since) == ("b:4150", "2026-11-18T11:00:03Z")


def test_a_lost_node_without_a_wanted_topic_is_left_out() -> None:
    lost = [entry("a", topics=["t"], lost_at=1), entry("b", topics=["u"], lost_at=1)]
    lost.append(entry("c", topics=[], any_topic=True, lost_at=1))
    found = named_nodes({"producers": [], "lost": lost}, lambda topic: topic == "t")
    assert [node.name for node in found] == ["a:4150", "c:4150"]


def test_an_answer_of_another_form_names_no_node() -> None:
    for answer in (
        None,
        [],
        {},
        {"producers": None},
        {"producers": [1, {}], "lost": [entry()]},
    ):
        assert named_nodes(answer, anything) == []
    assert (
        named_nodes({"producers": [entry(http_port=0), entry(http_port=1 << 16)]}, anything) == []
    )


def test_a_node_that_one_nsqlookupd_lists_is_not_lost() -> None:
    here, early, late = (NamedNode("http://n:1", "n:2", at) for at in (0, 5, 9))
    for answers in ([[here], [late]], [[late], [here]], [[early], [here], [late]]):
        assert merged(answers) == {"http://n:1": here}
    assert merged([[early], [late]]) == merged([[late], [early]]) == {"http://n:1": late}


def test_the_address_of_an_ipv6_host_is_in_brackets() -> None:
    (node,) = named_nodes({"producers": [entry("::1")]}, anything)
    assert (node.address, node.name) == ("http://[::1]:4151", "::1:4150")
