"""What a test does to the daemon, and sees of it, through its HTTP door.

Knows the paths of the admin actions and the shape of /stats. Knows nothing of sockets.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from tests.kit.daemons import Nsqd, wait_until

Stats = dict[str, Any]


def act(nsqd: Nsqd, path: str, **params: str) -> None:
    """POSTs an admin action such as /channel/pause; it must succeed."""
    status, body = nsqd.http("POST", f"{path}?{urlencode(params)}")
    assert status == 200, (path, params, status, body)


def topic_stats(nsqd: Nsqd, topic: str) -> Stats:
    """Counters of one topic; empty while it does not exist."""
    return next(iter(nsqd.stats(topic)["topics"] or ()), {})


def await_topic(nsqd: Nsqd, topic: str, **expected: object) -> Stats:
    """Waits until the topic's figures in /stats are the expected ones."""
    return _await_figures(lambda: topic_stats(nsqd, topic), expected)


def await_channel(nsqd: Nsqd, topic: str, channel: str, **expected: object) -> Stats:
    """Waits until the channel's figures in /stats are the expected ones."""
    return _await_figures(lambda: nsqd.channel_stats(topic, channel), expected)


def await_no_topic(nsqd: Nsqd, topic: str) -> None:
    wait_until(lambda: not topic_stats(nsqd, topic))


def await_no_channel(nsqd: Nsqd, topic: str, channel: str) -> None:
    wait_until(lambda: not nsqd.channel_stats(topic, channel))


def _await_figures(read: Callable[[], Stats], expected: Stats) -> Stats:
    seen: Stats = {}

    def settled() -> bool:
        nonlocal seen
        seen = read()
        return bool(seen) and figures(seen, expected) == expected

    try:
        wait_until(settled)
    except AssertionError:
        raise AssertionError(f"{figures(seen, expected)} instead of {expected}") from None
    return seen


def figures(stats: Stats, names: Stats) -> Stats:
    return {name: stats.get(name) for name in names}
