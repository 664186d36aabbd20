"""Lag: how many published rows a stream has not read yet, computed from its progress.

Spark's Python sources cannot report metrics of their own, but they report the newest offsets:
`sources[n].latestOffset` in `query.lastProgress`. Lag is the distance from `endOffset` to there. A
node that is away has no newest offsets there: the lag is at least that of the others.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.positions import Positions, away_of, from_json, rows_between


class _HasJson(Protocol):
    @property
    def json(self) -> str: ...


Progress = _HasJson | Mapping[str, object] | str


def lag(progress: Progress) -> int | None:
    """How many rows the query had not read when it reported `progress`. None if that is not known:
    nodes were `away`, or nothing was read yet (`least_lag`).

    >>> lag(query.lastProgress)  # doctest: +SKIP
    0
    """
    if not any(True for _ in _ends(progress)) or not _all_report(progress) or away(progress):
        return None
    return least_lag(progress)


def least_lag(progress: Progress) -> int:
    """At least so many rows were not read: those of the nodes that answered."""
    return sum(lag_by_log(progress).values())


def lag_by_log(progress: Progress) -> dict[tuple[str, str], int]:
    """The same by (topic, node); logs with nothing to read are left out."""
    lags: dict[tuple[str, str], int] = {}
    for end, latest in _ends(progress):
        lags.update(rows_between(end, latest))
    return lags


def away(progress: Progress) -> list[str]:
    """The nodes of which the query did not know how many rows they have."""
    unknown = {node for end, latest in _ends(progress) for _, node in end.keys() - latest}
    for source in _sources(progress):
        with suppress(NsqError):
            unknown |= {*away_of(_offset(source.get("latestOffset")))}
    return sorted(unknown)


def _ends(progress: Progress) -> Iterator[tuple[Positions, Positions]]:
    """Where the batch ended, and the newest positions, for each source of this kind."""
    for source in _sources(progress):
        try:
            yield _positions(source["endOffset"]), _positions(source["latestOffset"])
        except (NsqError, KeyError):
            continue  # another kind of source, or nothing was read yet


def _all_report(progress: Progress) -> bool:
    """Whether every source of this kind that has read something says how much there is."""
    for source in _sources(progress):
        with suppress(NsqError):
            if _positions(source.get("endOffset")) and source.get("latestOffset") is None:
                return False
    return True


def _sources(progress: Progress) -> list[dict[str, Any]]:
    value = progress if isinstance(progress, str | Mapping) else progress.json
    decoded: dict[str, Any] = json.loads(value) if isinstance(value, str) else dict(value)
    return [dict(source) for source in decoded.get("sources", [])]


def _positions(value: object) -> Positions:
    return from_json(_offset(value))


def _offset(value: object) -> dict[str, object]:
    decoded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(decoded, dict):
        raise NsqError("no offset")
    return decoded
