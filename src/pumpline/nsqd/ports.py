"""The ports nsqd listens on, as it tells clients and nsqlookupd."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Ports:
    """0 while, or if, there is no such listener; -1 for one on a unix socket."""

    tcp: int = 0
    http: int = 0
    https: int = 0
