"""Pages of messages over several nodes, and where they go on."""

import random

import pytest

from pumpline.cluster.log import LogMessage, LogPage
from pumpline.nsqadmin.api.messages import merge, read_next, write_next
from pumpline.web.replies import HttpError


def log(node: int, count: int) -> list[LogMessage]:
    chosen = random.Random(node)
    times = sorted(chosen.randrange(1000) for _ in range(count))
    return [
        LogMessage(offset=offset, id=f"{node}", timestamp=time_ns, body=f"{node}/{offset}")
        for offset, time_ns in enumerate(times)
    ]


def peek(messages: list[LogMessage], start: int, limit: int, *, newest: bool) -> LogPage:
    """As nsqd does it."""
    if newest:
        below = [each for each in messages if each.offset < start]
        own = below[::-1][:limit]
        after = own[-1].offset if own else 0
    else:
        own = [each for each in messages if each.offset >= start][:limit]
        after = own[-1].offset + 1 if own else len(messages)
    return LogPage(first=0, end=len(messages), messages=own, next=after)


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_page_by_page_every_message_comes_once_in_order(limit: int, newest: bool) -> None:
    logs = {f"n{n}:1": log(n, count) for n, count in enumerate((10, 0, 25, 1))}
    starts = {node: len(each) if newest else 0 for node, each in logs.items()}
    seen: list[str] = []
    while starts:
        pages = {
            node: peek(logs[node], start, limit, newest=newest) for node, start in starts.items()
        }
        shown, after = merge(pages, limit, newest=newest)
        assert len(shown) <= limit
        seen += [each["body"] for each in shown]
        starts = read_next(write_next(after))
    every = [each for messages in logs.values() for each in messages]
    by_text = {each.body: each for each in every}
    assert sorted(seen) == sorted(by_text)
    times = [by_text[text].timestamp for text in seen]
    assert times == sorted(times, reverse=newest)


@pytest.mark.parametrize("text", ["x", "1", "@n", "-1@n", "1@n,", "9" * 30 + "@n", "1@n" * 40_000])
def test_a_next_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(HttpError, match="INVALID_NEXT"):
        read_next(text)
