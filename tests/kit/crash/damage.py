"""Ways to damage a topic's files, each with what it must cost and what must be said about it.

Every message was published by itself, and so is a batch of its own in the log.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

COUNT = 40
SEGMENT_BYTES = 2000  # about twelve messages
SENT = [b"%03d " % number + b"x" * 100 for number in range(COUNT)]

_OLDEST, _MIDDLE, _NEWEST = 0, 1, -1
_BATCH = 2  # in its segment, the one that is hit
_GARBAGE = b"\x00\x00\x01garbage" * 20


class Damage(NamedTuple):
    """What was done to one topic."""

    lost: list[bytes]  # bodies that cannot be delivered any more
    said: str  # must be in a log line of level ERROR or WARNING; "": nothing can be known
    kept: str = ""  # name of the .bad file


Method = Callable[[list[Path]], Damage]


def methods() -> Iterator[tuple[str, Method]]:
    """All ways, by name; each takes the topic's segments, oldest first."""
    for which, segment in (("oldest", _OLDEST), ("middle", _MIDDLE), ("newest", _NEWEST)):
        for place, position in (("length", 1), ("crc", 5), ("offset", 12), ("count", 35)):
            yield f"flip-{place}-{which}", _flip(segment, position)
        yield f"flip-body-{which}", _flip(segment, 100)
    for which, segment in (("middle", _MIDDLE), ("newest", _NEWEST)):
        yield f"ones-after-{which}", _append(segment, b"\xff" * 200)
        yield f"text-after-{which}", _append(segment, _GARBAGE)
        yield f"cut-in-size-{which}", _cut(segment, 3)
        yield f"cut-in-batch-{which}", _cut(segment, 60)
        yield f"cut-at-batch-{which}", _cut(segment, 0)
    yield "zeros-after-middle", _append(_MIDDLE, bytes(200))
    yield "zeros-after-newest", _append_zeros_to_newest
    yield "missing-middle", _remove


def batch_starts(data: bytes) -> list[int]:
    starts = []
    at = 0
    while at < len(data):
        starts.append(at)
        at += 4 + int.from_bytes(data[at : at + 4])
    assert at == len(data)
    return starts


def bodies_from(data: bytes, batch: int) -> list[bytes]:
    """The bodies of a segment from one batch on."""
    ends = [*batch_starts(data)[1:], len(data)]
    return [data[end - len(SENT[0]) : end] for end in ends[batch:]]


def flip_last_batch(paths: list[Path]) -> Damage:
    return _flip(_NEWEST, 100, batch=-1)(paths)


def _flip(segment: int, position: int, batch: int = _BATCH) -> Method:
    def damage(paths: list[Path]) -> Damage:
        path = paths[segment]
        data = bytearray(path.read_bytes())
        start = batch_starts(data)[batch]
        lost = bodies_from(data, batch)[:1]
        data[start + position] ^= 0x10
        path.write_bytes(data)
        return Damage(lost, f"bytes at {start} damaged, kept in", f"{path.name}.{start}.bad")

    return damage


def _append(segment: int, garbage: bytes) -> Method:
    def damage(paths: list[Path]) -> Damage:
        path = paths[segment]
        size_bytes = path.stat().st_size
        with path.open("ab") as file:
            file.write(garbage)
        said = f"{path.name}: {len(garbage)} bytes at {size_bytes} damaged, kept in"
        return Damage([], said, f"{path.name}.{size_bytes}.bad")

    return damage


def _append_zeros_to_newest(paths: list[Path]) -> Damage:
    """Zeros are what a crash leaves of a write whose data never arrived: a torn tail."""
    _append(_NEWEST, bytes(200))(paths)
    return Damage([], f"{paths[_NEWEST].name}: torn tail of 200 bytes")


def _cut(segment: int, extra_bytes: int) -> Method:
    def damage(paths: list[Path]) -> Damage:
        path = paths[segment]
        data = path.read_bytes()
        start = batch_starts(data)[_BATCH]
        path.write_bytes(data[: start + extra_bytes])
        lost = bodies_from(data, _BATCH)
        if segment == _NEWEST:
            # A torn write looks the same; and a cut between batches looks like nothing at all.
            return Damage(lost, f"torn tail of {extra_bytes} bytes" if extra_bytes else "")
        if extra_bytes:
            said = f"{path.name}: {extra_bytes} bytes at {start} damaged, kept in"
            return Damage(lost, said, f"{path.name}.{start}.bad")
        return Damage(lost, f"{len(lost)} messages")

    return damage


def _remove(paths: list[Path]) -> Damage:
    lost = bodies_from(paths[_MIDDLE].read_bytes(), 0)
    paths[_MIDDLE].unlink()
    return Damage(lost, f"{len(lost)} messages")
