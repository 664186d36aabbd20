"""Lag: how many published rows a stream has not read yet, computed from its progress.

Spark's Python sources cannot report metrics of their own, but they report the newest offsets:
`sources[n].latestOffset` in `query.lastProgress`. Lag is the distance from `endOffset` to there. A
node that is away has no newest offsets there, so that the lag is at least this.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.positions import Positions, from_json, rows_between


class _HasJson(Protocol):
    @property
    def json(self) -> str: ...


Progress = _HasJson | Mapping[str, object] | str


def lag(progress: Progress) -> int:
    """How many rows the query had not read when it reported `progress`; at least this many if nodes
    were `away`.

    >>> lag(query.lastProgress)  # doctest: +SKIP
    0
    """
    return sum(lag_by_log(progress).values())


def lag_by_log(progress: Progress) -> dict[tuple[str, str], int]:
    """The same by (topic, node); logs with nothing to read are left out."""
    lags: dict[tuple[str, str], int] = {}
    for end, latest in _ends(progress):
        lags.update(rows_between(end, latest))
    return lags


def away(progress: Progress) -> list[str]:
    """The nodes of which the query did not know how many rows they have."""
    return sorted({node for end, latest in _ends(progress) for _, node in end.keys() - latest})


def _ends(progress: Progress) -> Iterator[tuple[Positions, Positions]]:
    """Where the batch ended, and the newest positions, for each source of this kind."""
    value = progress if isinstance(progress, str | Mapping) else progress.json
    decoded: dict[str, Any] = json.loads(value) if isinstance(value, str) else dict(value)
    for source in decoded.get("sources", []):
        try:
            yield _positions(source["endOffset"]), _positions(source["latestOffset"])
        except (NsqError, KeyError):
            continue  # another kind of source, or nothing was read yet


def _positions(value: object) -> Positions:
    decoded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(decoded, dict):
        raise NsqError("no offset")
    return from_json(decoded)
