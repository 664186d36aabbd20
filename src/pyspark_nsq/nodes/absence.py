"""Decides whether a read is complete: compares the nodes that answered with those expected.

| a node is expected if                             | known by                            |
|---------------------------------------------------|-------------------------------------|
| the option `nsqd` names it                        | its HTTP address                    |
| nsqlookupd lists it, or has lost it               | its HTTP address and name           |
| a checkpoint, a table or a replay's plan has it   | its name, and the ids of its logs   |
| `expectNodes` counts it                           | nothing: so many nodes must answer  |

`withoutNode` accepts that a node is missing. nsqlookupd lists no node that went away, and NSQ's
forgets it. Knows names and positions; must not know Spark.
"""

from collections.abc import Iterable, Mapping

from pyspark_nsq.errors import NotAllRead, Unreachable
from pyspark_nsq.nodes.nodes import Survey
from pyspark_nsq.nodes.positions import Positions
from pyspark_nsq.options import ReadOptions

TOPICS_NAMED_MAX = 3  # of a node, in an error

NO_POSITIONS: Positions = {}


def require_complete(
    survey: Survey, options: ReadOptions, expected: Positions = NO_POSITIONS
) -> None:
    """Raise NotAllRead if a node is missing that `withoutNode` does not name, and Unreachable if no
    nsqlookupd says which nodes there are."""
    if survey.undirected:
        raise Unreachable(f"no nsqlookupd can be asked: {survey.undirected}")
    if missing := missing_nodes(survey, options, expected):
        raise NotAllRead(f"not all is read: {sentence(missing)}")
    wanted, there = options.nodes_expected, sorted(survey.names)
    if wanted is not None and len(there) < wanted:
        raise NotAllRead(
            f"not all is read: expectNodes is {wanted}, but {len(there)} answer: "
            f"{', '.join(there) or 'none'}; a smaller expectNodes continues without the others"
        )


def missing_nodes(
    survey: Survey, options: ReadOptions, expected: Positions = NO_POSITIONS
) -> dict[str, str]:
    """The nodes that are expected and did not answer: the reason by name, or by HTTP address if the
    name is not known."""
    places: dict[str, list[str]] = {}
    for (topic, node), place in sorted(absent(survey, expected, options).items()):
        places.setdefault(node, []).append(f"topic {topic} is read up to {place.offset:,}")
    # All its logs that are known from before are on other nodes: it has another address.
    moved = {node for topic, node in expected if options.wants(topic)} - places.keys()
    missing: dict[str, str] = {}
    for address, text in survey.silent.items():
        host = address.partition("://")[2]
        lost = survey.lost.get(address)
        node = lost.name if lost is not None else host
        if node in survey.names or node in moved or options.without & {node, host}:
            continue
        if lost is None:
            missing[node] = text
        else:
            known = f" ({_shown(places[node])})" if node in places else ""
            missing[node] = f"{node} is away since {lost.since}{known}"
    for node, texts in places.items():
        if node not in options.without:
            missing.setdefault(node, described(node, texts))
    return missing


def left_out_nodes(survey: Survey) -> list[str]:
    """The nodes that did not answer, also those that may be missing; by name, if it is known."""
    names = {address: node.name for address, node in survey.lost.items()} | survey.silent_names
    found = {names.get(address) or address.partition("://")[2] for address in survey.silent}
    return sorted(found - survey.names.keys())


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


def described(node: str, places: list[str]) -> str:
    """Why a node is missing that nsqlookupd does not know, and what is known of its logs."""
    return f"{node} is away, or the topic was deleted there ({_shown(places)})"


def sentence(missing: Mapping[str, str]) -> str:
    """The reasons by node, and the option that accepts all of it."""
    return f"{'; '.join(missing.values())}; {way_out(missing)}"


def way_out(nodes: Iterable[str]) -> str:
    return f"--without-node {','.join(nodes)} (in Spark the option withoutNode) continues without"


def _shown(places: list[str]) -> str:
    more = len(places) - TOPICS_NAMED_MAX
    rest = [f"{more:,} more"] if more > 0 else []
    return ", ".join([*places[:TOPICS_NAMED_MAX], *rest])
