"""Compares the nodes that answered with the nodes that are expected.

Expected are the addresses in the options, and the nodes in a checkpoint, a table or the plan of a
replay. nsqlookupd lists fewer: it forgets a node when its connection ends, and does not list it for
a topic that was deleted there. Knows names and positions; must not know Spark.
"""

from collections.abc import Iterable, Mapping

from pyspark_nsq.errors import NotAllRead
from pyspark_nsq.nodes.nodes import Survey
from pyspark_nsq.nodes.positions import Positions
from pyspark_nsq.options import ReadOptions

TOPICS_NAMED_MAX = 3  # of a node, in an error


def absent(survey: Survey, expected: Positions, options: ReadOptions) -> Positions:
    """The expected logs whose node did not answer.

    A log keeps its id when its node gets another name. A node that answers and no longer has the
    log is not absent: the log was deleted, which is loss of data.
    """
    there = {(state.topic, state.log) for state in survey.logs.values()}
    return {
        key: place
        for key, place in expected.items()
        if options.wants(key[0]) and key[1] not in survey.names and (key[0], place.log) not in there
    }


def silent(survey: Survey, options: ReadOptions) -> dict[str, str]:
    """The nodes of the options that do not answer and must not be missing: reason by address."""
    found = {address.partition("://")[2]: text for address, text in survey.silent.items()}
    return {node: text for node, text in found.items() if node not in options.without}


def require_nodes(survey: Survey, expected: Positions, options: ReadOptions) -> None:
    """Raise NotAllRead if a node is missing that `withoutNode` does not name."""
    missing = silent(survey, options)
    places: dict[str, list[str]] = {}
    for (topic, node), place in sorted(absent(survey, expected, options).items()):
        if node not in options.without:
            places.setdefault(node, []).append(f"topic {topic} is read up to {place.offset:,}")
    missing |= {node: described(node, texts) for node, texts in places.items()}
    if missing:
        raise NotAllRead(f"not all is read: {sentence(missing)}")


def described(node: str, places: list[str]) -> str:
    """Why a node is missing, and what is known of its logs."""
    more = len(places) - TOPICS_NAMED_MAX
    rest = [f"{more:,} more"] if more > 0 else []
    known = ", ".join([*places[:TOPICS_NAMED_MAX], *rest])
    return f"{node} is away, or the topic was deleted there ({known})"


def sentence(missing: Mapping[str, str]) -> str:
    """The reasons by node, and the option that accepts all of it."""
    return f"{'; '.join(missing.values())}; {way_out(missing)}"


def way_out(nodes: Iterable[str]) -> str:
    return f"--without-node {','.join(nodes)} (in Spark the option withoutNode) continues without"
