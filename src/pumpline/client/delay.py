"""Delays as users give them: seconds or a timedelta; milliseconds as nsqd is told."""

from datetime import timedelta
from math import inf

Delay = float | timedelta
"""Seconds, or a timedelta."""


def milliseconds(delay: Delay) -> int:
    """ValueError if it is negative or not finite, TypeError if it is no delay."""
    if not isinstance(delay, int | float | timedelta) or isinstance(delay, bool):
        kind = type(delay).__name__
        raise TypeError(f"a delay is a number of seconds or a timedelta, not {kind}")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds < inf:
        raise ValueError(f"a message cannot be delayed by {seconds} s")
    return round(seconds * 1000)
