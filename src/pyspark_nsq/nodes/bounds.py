"""Turns the bounds that the user gave into offsets of each log, and checks them against the logs.

This happens while Spark plans, so that a wrong offset is an error before any task runs.
"""

import logging
from collections.abc import Mapping

from pyspark_nsq.errors import BadOption, DataLoss, Unreachable
from pyspark_nsq.nodes.absence import NO_POSITIONS, require_complete, way_out
from pyspark_nsq.nodes.nodes import LogState, Nodes, Survey
from pyspark_nsq.nodes.positions import Key, Position, Positions
from pyspark_nsq.options import (
    ALL_OTHERS,
    EARLIEST,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    AtOffsets,
    AtTime,
    Bound,
    ReadOptions,
)

CLOCK_MARGIN_NS = 1_000_000_000

_LOG = logging.getLogger(__name__)


def complete_survey(
    nodes: Nodes,
    options: ReadOptions,
    expected: Positions = NO_POSITIONS,
    *,
    waits: bool = False,
) -> Survey:
    """Survey the nodes; raise an error if one is missing, or a topic exists on no node.

    Otherwise rows would be missing without notice. `expected` are positions of an earlier read.
    `waits`: the topics of a pattern may all be created later.
    """
    survey = answered_survey(nodes, options, expected)
    error = nodes.missing(survey)
    if error is not None and waits and options.pattern is not None:
        _LOG.warning("%s: waiting for one", error)
    elif error is not None:
        raise error
    return survey


def answered_survey(
    nodes: Nodes, options: ReadOptions, expected: Positions = NO_POSITIONS
) -> Survey:
    """The same, but a topic may be on no node."""
    survey = nodes.survey()
    require_complete(survey, options, expected)
    if survey.silent:
        texts = "; ".join(survey.silent.values())
        if not survey.names:
            raise Unreachable(texts)
        _LOG.warning("reading without: %s", texts)
    return survey


def offsets_at(bound: Bound, survey: Survey, nodes: Nodes, options: ReadOptions) -> dict[Key, int]:
    """The offset of the bound in every log of the survey."""
    logs = survey.logs
    if isinstance(bound, AtTime):
        return {key: nodes.offset_at(state, bound.time_ns) for key, state in logs.items()}
    if isinstance(bound, AtOffsets):
        _check_named(bound.offsets, survey, options)
        return {key: _offset_at(bound, state, nodes, options) for key, state in logs.items()}
    return {key: state.first if bound == EARLIEST else state.end for key, state in logs.items()}


def others_at(bound: Bound, survey: Survey, began_ns: int) -> int | None:
    """When logs begin that are found later; None for their beginning.

    `latest` is the time when the stream began, by the clock that is furthest behind, and a second
    earlier: a topic that is created right after that must not lose messages because its node's
    clock is late.
    """
    if isinstance(bound, AtTime):
        return bound.time_ns
    if isinstance(bound, AtOffsets):
        if bound.others_ns is not None:
            return bound.others_ns
        is_latest = bound.offsets.get(ALL_OTHERS, {}).get(ALL_OTHERS) == OFFSET_LATEST
    else:
        is_latest = bound != EARLIEST
    if not is_latest:
        return None
    clocks_ns = [state.now_ns for state in survey.logs.values() if state.now_ns]
    return min([began_ns, *clocks_ns]) - CLOCK_MARGIN_NS


def gone_back(place: Position, state: LogState, nodes: Nodes) -> bool:
    """Whether a log is not the one that was read up to `place`, but an older state of it that has
    grown since, as after a restored backup: the last message before the place is a later one."""
    if not place.at_ns or not state.first < place.offset <= state.end:
        return False
    published_ns = nodes.published_ns(state, place.offset - 1)
    return published_ns is not None and published_ns > place.at_ns


def _check_named(
    offsets: Mapping[str, Mapping[str, int]], survey: Survey, options: ReadOptions
) -> None:
    """Raise BadOption for a topic or node that does not exist: it may be misspelt, or missing."""
    for topic, by_node in offsets.items():
        for node in by_node if topic != ALL_OTHERS else ():
            if (topic, node) not in survey.logs and node not in options.without:
                there = ", ".join(n for t, n in sorted(survey.logs) if t == topic) or "no node"
                hint = "" if node in survey.names else f"; {way_out([node])}"
                text = f"offsets name '{node}' for topic '{topic}', which is on {there}"
                raise BadOption(f"{text}{hint}")


def _offset_at(bound: AtOffsets, state: LogState, nodes: Nodes, options: ReadOptions) -> int:
    is_named = state.node in bound.offsets.get(state.topic, {})
    if bound.others_ns is not None and not is_named:
        return nodes.offset_at(state, bound.others_ns)
    return _checked(_named(bound.offsets, state), state, options)


def _named(offsets: Mapping[str, Mapping[str, int]], state: LogState) -> int:
    others = offsets.get(ALL_OTHERS, {}).get(ALL_OTHERS)
    offset = offsets.get(state.topic, {}).get(state.node, others)
    if offset is None:
        raise BadOption(
            f"offsets say nothing about topic '{state.topic}' on '{state.node}' "
            "(-1 is its end, -2 its beginning)"
        )
    return {OFFSET_LATEST: state.end, OFFSET_EARLIEST: state.first}.get(offset, offset)


def _checked(offset: int, state: LogState, options: ReadOptions) -> int:
    where = f"topic {state.topic} on {state.node}"
    if offset > state.end:
        raise BadOption(f"{where}: offset {offset} is beyond the end, which is {state.end}")
    if offset < state.first:
        text = f"{where}: offset {offset} is retired, the oldest is {state.first}"
        if options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false begins there")
        _LOG.warning("%s", text)
        return state.first
    return offset
