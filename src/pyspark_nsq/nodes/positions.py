"""Positions: how far a stream has read each log, in the form that Spark keeps in its checkpoint.

    {"orders": {"10.0.0.5:4150": {
        "log": "1f0a...", "offset": 4711, "row_bytes": 240, "at_ns": 1794873600000000000}}}

The keys are topic and node. `log` is the id of the log: a topic that was deleted and created again
has a new one, so old offsets are not mistaken for new ones. `row_bytes` is the average size of a
row when the batch that ends there was planned: a repeated batch must be cut into the same
partitions, or a sink could not recognise its rows, and the node's average has changed since.
`at_ns` is the node's time when it had the messages before the offset: one that was published later
is not the message that was read (`bounds.gone_back`).

    {"*": {"*": {"log": "", "offset": 0, "at_ns": 1794873600000000000}}}

says that logs that are found later begin at this time: their node was away when the stream began.
Without it they begin at their beginning. In the newest offsets that a stream reports, "*" also has
the nodes that are away, of which nobody knows how many rows they have.

Spark compares positions as texts, so keys are sorted: equal positions give equal texts. Knows
numbers; must not know nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

from pumpline.core.messages.spans import left_out
from pyspark_nsq.errors import NsqError
from pyspark_nsq.options import ALL_OTHERS


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading of a log goes on: one past the last offset that was read."""

    log: str
    offset: int
    row_bytes: int = 1
    at_ns: int = 0  # 0: not known


NOWHERE = Position("", 0)

Key = tuple[str, str]  # topic, node
Positions = dict[Key, Position]
Gaps = tuple[tuple[int, int], ...]  # [start, end) of offsets that a log has left out, in order
Json = dict[str, dict[str, dict[str, str | int]]]


def to_json(positions: Positions, others_ns: int | None = None, away: Iterable[str] = ()) -> Json:
    others: dict[str, dict[str, str | int]] = {node: asdict(NOWHERE) for node in sorted(away)}
    if others_ns is not None:
        others[ALL_OTHERS] = asdict(replace(NOWHERE, at_ns=others_ns))
    value: Json = {ALL_OTHERS: others} if others else {}
    for topic, node in sorted(positions):
        place = positions[topic, node]
        value.setdefault(topic, {})[node] = asdict(place)
    return value


def from_json(value: Mapping[str, object]) -> Positions:
    """Raise NsqError if to_json did not write this; the checkpoint may be another source's."""
    try:
        return {
            (topic, node): _position(place)
            for topic, nodes in value.items()
            if topic != ALL_OTHERS
            for node, place in cast(dict[str, dict[str, object]], nodes).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NsqError(
            f"the checkpoint has an offset that this source did not write: {value!r:.200}"
        ) from None


def others_of(value: Mapping[str, object]) -> int | None:
    """When logs begin that are found later; None for their beginning."""
    return next((p.at_ns for node, p in _others(value).items() if node == ALL_OTHERS), None)


def away_of(value: Mapping[str, object]) -> list[str]:
    """The nodes that were away when these newest offsets were reported."""
    return [node for node in _others(value) if node != ALL_OTHERS]


def _others(value: Mapping[str, object]) -> dict[str, Position]:
    found = from_json({"others": value.get(ALL_OTHERS, {})})
    return {node: place for (_, node), place in found.items()}


def _position(place: Mapping[str, object]) -> Position:
    log, offset = place["log"], place["offset"]
    row_bytes, at_ns = place.get("row_bytes", 1), place.get("at_ns", 0)
    if not (isinstance(log, str) and isinstance(offset, int) and isinstance(at_ns, int)):
        raise TypeError(place)
    if not isinstance(row_bytes, int) or row_bytes <= 0 or offset < 0:
        raise ValueError(place)
    return Position(log, offset, row_bytes, at_ns)


def rows_between(start: Positions, end: Positions) -> dict[Key, int]:
    """How many rows there are to read of each log that has any.

    A log that is new in `end` has none yet. Its position in `end` is where reading begins; the
    checkpoint has it from this batch on.
    """
    rows: dict[Key, int] = {}
    for key, place in end.items():
        before = start.get(key)
        if before is not None and before.log == place.log and place.offset > before.offset:
            rows[key] = place.offset - before.offset
    return rows


def limited(
    start: Positions,
    end: Positions,
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
    gaps: Mapping[Key, Gaps] | None = None,
) -> Positions:
    """The positions `rows_max` rows, and `bytes_max` bytes, further, at most at `end`; logs share
    them by their lag. Bytes are estimated by the average row of each log.

    At least one row is read if there is any, so that a small limit cannot stop the stream. Offsets
    that a log has left out are no rows: else a gap of millions would be as many empty batches.
    """
    gaps = gaps or {}
    lags = {
        key: rows - left_out(gaps.get(key, ()), start[key].offset, end[key].offset)
        for key, rows in rows_between(start, end).items()
    }
    total = sum(lags.values())
    rows_max = total if rows_max is None else rows_max
    total_bytes = sum(rows * end[key].row_bytes for key, rows in lags.items())
    if bytes_max is not None and total_bytes > bytes_max:
        rows_max = max(min(rows_max, total * bytes_max // total_bytes), 1)
    if total <= rows_max:
        return end
    shares = {key: rows * rows_max // total for key, rows in lags.items()}
    spare = rows_max - sum(shares.values())
    for key in sorted(lags, key=lambda key: (-lags[key], key)):  # rounding down leaves some
        if not spare:
            break
        if shares[key] < lags[key]:
            shares[key] += 1
            spare -= 1
    reached = dict(end)
    for key, share in shares.items():
        offset = _further(gaps.get(key, ()), start[key].offset, share)
        reached[key] = replace(end[key], offset=offset) if share else start[key]
    return reached


def _further(gaps: Gaps, offset: int, rows: int) -> int:
    """The offset after `rows` rows from `offset` on."""
    for before, after in gaps:
        if after <= offset:
            continue
        if before - offset >= rows:
            break
        rows -= max(before - offset, 0)
        offset = after
    return offset + rows
