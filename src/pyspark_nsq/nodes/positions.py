"""Positions: how far a stream has read each log, as Spark keeps it in its checkpoint.

    {"orders": {"10.0.0.5:4150": {"log": "1f0a...", "offset": 4711, "row_bytes": 240}}}

By topic and node. `log` is the log's own id: a topic deleted and created again has another, so old
offsets cannot be taken for new ones. `row_bytes` is what a row weighed on average when the batch
that ends there was planned: a batch that is repeated has to be cut into the same partitions, or a
sink could not tell its rows from others, and the node's own average has changed by then. Spark
compares positions as texts; keys are sorted so that equal ones are equal. Pure: knows numbers, not
nodes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from pyspark_nsq.errors import NsqError


@dataclass(frozen=True, slots=True)
class Position:
    """One past the last row that was read of a log."""

    log: str
    offset: int
    row_bytes: int = 1


Key = tuple[str, str]  # topic, node
Positions = dict[Key, Position]
Json = dict[str, dict[str, dict[str, str | int]]]


def to_json(positions: Positions) -> Json:
    value: Json = {}
    for topic, node in sorted(positions):
        place = positions[topic, node]
        value.setdefault(topic, {})[node] = asdict(place)
    return value


def from_json(value: Mapping[str, object]) -> Positions:
    """NsqError when this is not what to_json gave, as with another source's checkpoint."""
    positions: Positions = {}
    try:
        for topic, nodes in value.items():
            assert isinstance(nodes, dict)
            for node, place in nodes.items():
                log, offset = place["log"], place["offset"]
                row_bytes = place.get("row_bytes", 1)
                assert isinstance(log, str) and isinstance(offset, int)
                assert isinstance(row_bytes, int) and row_bytes > 0
                positions[topic, node] = Position(log, offset, row_bytes)
    except (AssertionError, KeyError, TypeError, AttributeError):
        raise NsqError(
            f"the checkpoint has an offset that this source did not write: {value!r:.200}"
        ) from None
    return positions


def rows_between(start: Positions, end: Positions) -> dict[Key, int]:
    """Rows to read of each log that has any. A log that is new in `end` has none yet: it enters
    with the place where its reading begins, which is thereby in the checkpoint."""
    rows: dict[Key, int] = {}
    for key, place in end.items():
        before = start.get(key)
        if before is not None and before.log == place.log and place.offset > before.offset:
            rows[key] = place.offset - before.offset
    return rows


def limited(start: Positions, end: Positions, rows_max: int) -> Positions:
    """As far towards `end` as `rows_max` rows go, shared by the logs in proportion to their lag.

    At least one row is read when there is any, so that a small limit cannot stop the stream.
    """
    lags = rows_between(start, end)
    total = sum(lags.values())
    if total <= rows_max:
        return end
    shares = {key: rows * rows_max // total for key, rows in lags.items()}
    spare = rows_max - sum(shares.values())
    for key in sorted(lags, key=lambda key: (-lags[key], key)):  # rounding leaves some over
        if not spare:
            break
        if shares[key] < lags[key]:
            shares[key] += 1
            spare -= 1
    reached = dict(end)
    for key, share in shares.items():
        reached[key] = replace(end[key], offset=start[key].offset + share) if share else start[key]
    return reached
