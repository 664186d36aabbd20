"""Lag: how many published rows a stream has not read yet, computed from its progress.

Spark's Python sources cannot report metrics of their own, but they report the newest offsets:
`sources[n].latestOffset` in `query.lastProgress`. Lag is the distance from `endOffset` to there.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.positions import Positions, from_json, rows_between


class _HasJson(Protocol):
    @property
    def json(self) -> str: ...


Progress = _HasJson | Mapping[str, object] | str


def lag(progress: Progress) -> int:
    """How many rows the query had not read when it reported `progress`.

    >>> lag(query.lastProgress)  # doctest: +SKIP
    0
    """
    return sum(lag_by_log(progress).values())


def lag_by_log(progress: Progress) -> dict[tuple[str, str], int]:
    """The same by (topic, node); logs with nothing to read are left out."""
    value = progress if isinstance(progress, str | Mapping) else progress.json
    decoded: dict[str, Any] = json.loads(value) if isinstance(value, str) else dict(value)
    lags: dict[tuple[str, str], int] = {}
    for source in decoded.get("sources", []):
        try:
            latest, end = _positions(source["latestOffset"]), _positions(source["endOffset"])
        except (NsqError, KeyError):
            continue  # another kind of source, or nothing was read yet
        lags.update(rows_between(end, latest))
    return lags


def _positions(value: object) -> Positions:
    decoded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(decoded, dict):
        raise NsqError("no offset")
    return from_json(decoded)
