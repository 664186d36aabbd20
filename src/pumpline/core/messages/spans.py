"""Spans of offsets, half open: what they have in common, and what lies between them. Pure."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def joined(spans: Iterable[Span], low: int = 0) -> list[Span]:
    """The union of `spans` above `low`, in order and apart from each other."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = result[-1][0], end
        elif end > low:
            result.append((max(start, low), end))
    return result


def gaps(start: int, end: int, spans: Iterable[Span]) -> list[Span]:
    """The parts of [start, end) in none of the spans, which are in order."""
    result: list[Span] = []
    for a, b in spans:
        if a >= end:
            break
        if a > start:
            result.append((start, a))
        start = max(start, b)
    if start < end:
        result.append((start, end))
    return result


def outside(offsets: Iterable[int], spans: list[Span]) -> list[int]:
    """The offsets, in order, that are in none of the spans, in order."""
    result = []
    index = 0
    for offset in offsets:
        while index < len(spans) and spans[index][1] <= offset:
            index += 1
        if index == len(spans) or offset < spans[index][0]:
            result.append(offset)
    return result


def length(spans: Iterable[Span]) -> int:
    """Of all spans together, which are apart."""
    return sum(end - start for start, end in spans)


def left_out(gaps: Sequence[Span], start: int, end: int) -> int:
    """How many offsets of [start, end) a log with these gaps has left out."""
    return sum(max(min(after, end) - max(before, start), 0) for before, after in gaps)


def back_from(gaps: Sequence[Span], end: int, count: int) -> int:
    """The offset of the first of the last `count` messages below `end`."""
    for before, after in reversed(gaps):
        if after < end:
            if end - after >= count:
                break
            count -= end - after
        end = min(end, before)
    return end - count
