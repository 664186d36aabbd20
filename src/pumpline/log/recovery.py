"""Reading a segment that may be damaged: where it ends, and where sense resumes after damage.

The rules, in the order they apply to bytes that are not a valid batch:
1. a valid batch follows somewhere in the file: the bytes between are *damage*: they stay where they
   are, a copy goes to `<segment>.<position>.bad`, and readers step over them;
2. nothing valid follows: the bytes are a *torn tail*, a write that never was acknowledged: in the
   newest segment they are cut off, so that the next batch is written on sound ground. Where they
   do not just end early, but are wrong, a copy is kept as well: they may have been acknowledged.
An error of the system (EMFILE, EIO) is neither: it is raised, and nothing is changed. But a start
on a disk without room for a copy goes on, so that consumers can drain it: the bytes stay where they
are, a tail as well, and the log goes on in a new segment.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.batches import HEADER_BYTES, BadBatch, LogBatch, ShortBatch, read_batch
from pumpline.core.messages.frame import ID_AT, ID_BYTES
from pumpline.core.messages.publish_tokens import split_tokens
from pumpline.log.files import BAD, NotAFile, lacks_room, open_file, read_whole, write_whole
from pumpline.log.segment import OFFSET_END, DueTimes, Segment, first_of

_CHUNK_BYTES = 4 << 20
_SURVEY_CHUNK_BYTES = 256 * 1024  # a thread that parses holds up the event loop
_U32 = Struct(">I")
_FIRST_AT = 8  # in the header

DAMAGED = -1


class Damage(NamedTuple):
    path: str  # of the segment
    position: int
    size_bytes: int
    kept_in: str  # the .bad file, the segment if there was no room, or "": a torn tail was cut off

    def __str__(self) -> str:
        name = os.path.basename(self.path)
        if self.kept_in:
            kept = os.path.basename(self.kept_in)
            return f"{name}: {self.size_bytes} bytes at {self.position} damaged, kept in {kept}"
        return f"{name}: torn tail of {self.size_bytes} bytes at {self.position} cut off"


def recover(segment: Segment) -> tuple[int, list[Damage]]:
    """Check the newest segment from end to end, index it, cut a torn tail.

    Returns the offset after the last message, and what was damaged. If the segment ends with a hole
    afterwards, nothing may be appended to it.
    """
    fd = open_file(segment.path, os.O_RDWR)
    try:
        segment.size_bytes = os.fstat(fd).st_size
        end, position, fault, damages = _check(
            fd, segment, _CHUNK_BYTES, OFFSET_END, aside=_set_aside_if_room
        )
        if position < segment.size_bytes:
            damages.append(_cut(fd, segment, position, whole=fault == DAMAGED))
        return end, damages
    finally:
        os.close(fd)


def survey(segment: Segment, fd: int, limit: int) -> tuple[Segment, list[Damage]]:
    """Check the unchecked part of a segment, from a thread; nothing is cut. What is found is in the
    segment returned, for `learn`. `limit`: see `parse`."""
    found = Segment(os.path.dirname(segment.path), segment.first)
    found.size_bytes = min(segment.unchecked_bytes, os.fstat(fd).st_size)
    _, position, _, damages = _check(fd, found, _SURVEY_CHUNK_BYTES, limit, aside=set_aside)
    if position < found.size_bytes:
        damages.append(set_aside(fd, found, position, found.size_bytes))
    return found, damages


def first_batch(path: str, first: int) -> LogBatch | None:
    """The first whole batch of a segment's file, whose first offset is `first`, if there is one."""
    fd = open_file(path)
    try:
        size_bytes = os.fstat(fd).st_size
        is_sound = _valid_at(fd, 0, lambda batch: first <= batch.first < batch.end <= OFFSET_END)
        position = 0 if is_sound else None
        if position is None:
            position = resync(fd, 0, size_bytes, offset=first, limit=OFFSET_END)
        if position is None:
            return None
        head = os.pread(fd, HEADER_BYTES, position)
        whole = os.pread(fd, 4 + int.from_bytes(head[:4], "big"), position)
        return read_batch(memoryview(whole), 0)
    finally:
        os.close(fd)


def base_in_log(path: str) -> int | None:
    """The base of the ids in a log whose manifest is lost, from the first batch that is whole."""
    for name in sorted(os.listdir(path)):
        first = first_of(name)
        if first is None:
            continue
        batch = first_batch(os.path.join(path, name), first)
        if batch is not None:
            with suppress(ValueError):
                return int(bytes(batch.frames[ID_AT : ID_AT + ID_BYTES]), 16) - batch.first
    return None


def _check(
    fd: int,
    segment: Segment,
    chunk_bytes: int,
    limit: int,
    *,
    aside: Callable[[int, Segment, int, int], Damage],
) -> tuple[int, int, int, list[Damage]]:
    """Parse the whole segment and index it, setting aside what is damaged between batches.

    Returns the offset after the last message, the position after the last batch, what stopped the
    parse there, and the damage.
    """
    end = segment.first
    newest_ns = 0
    damages: list[Damage] = []
    size_bytes = segment.size_bytes
    position = 0
    want = chunk_bytes
    while position < size_bytes:
        started_s = time.perf_counter()
        data = memoryview(os.pread(fd, min(want, size_bytes - position), position))
        batches, used, fault = parse(data, limit)
        at = position
        for batch in batches:
            segment.note(batch, at)
            at += batch.size_bytes
            end = batch.end
            if batch.published_ns(batch.first) < newest_ns:
                segment.ordered_from = batch.first
            newest_ns = batch.published_ns(batch.end - 1)
            if batch.dues:
                segment.deferred.append(DueTimes.of(batch))
            if batch.tokens:
                segment.tokens += [(batch.end, token) for token in split_tokens(batch.tokens)]
        position += used
        want = chunk_bytes
        if 0 < fault <= size_bytes - position:
            want = max(want, fault)
        elif fault:
            resume = resync(fd, position, size_bytes, offset=end, limit=limit)
            if resume is None:
                return end, position, fault, damages
            damages.append(aside(fd, segment, position, resume))
            position = resume
        elif not used:
            return end, position, 0, damages  # the file is shorter than it was
        if chunk_bytes < _CHUNK_BYTES:
            time.sleep(time.perf_counter() - started_s)  # others need the interpreter too
    return end, position, 0, damages


def parse(data: memoryview, limit: int) -> tuple[list[LogBatch], int, int]:
    """The whole batches at the start of `data`, the bytes they take, and what stopped the parse.

    Offsets from `limit` on are the next segment's: what says it has them is out of place. The last
    returned is 0 at the end of the data, DAMAGED, or how many bytes the batch cut off there needs.
    It is no exception on purpose: one kept in a local would, by its traceback, keep the data alive
    until the next garbage collection.
    """
    batches: list[LogBatch] = []
    at = 0
    while at < len(data):
        try:
            batch = read_batch(data, at)
        except ShortBatch as short:
            return batches, at, short.need_bytes
        except BadBatch:
            return batches, at, DAMAGED
        if batch.end > limit or (batches and batch.first < batches[-1].end):
            return batches, at, DAMAGED  # valid in itself, but not where it belongs
        batches.append(batch)
        at += batch.size_bytes
    return batches, at, 0


def resync(fd: int, position: int, size_bytes: int, *, offset: int, limit: int) -> int | None:
    """The position of the first valid batch after damage at `position`, if there is one, that has
    offsets from `offset` on and below `limit` only."""
    # The offsets may have passed a multiple of 2^32 since.
    highs = b"|".join(re.escape(_U32.pack((offset >> 32) + more)) for more in (0, 1))

    def belongs(batch: LogBatch) -> bool:
        return batch.first >= offset and batch.end <= limit

    return find_batch(fd, position, size_bytes, firsts=b"(?:" + highs + b").{4}", belongs=belongs)


def find_batch(
    fd: int,
    position: int,
    size_bytes: int,
    *,
    firsts: bytes,
    belongs: Callable[[LogBatch], bool],
) -> int | None:
    """The position of the first valid batch after damage at `position` that `belongs` there.

    Candidates are found by their first offset (`firsts` is a regular expression for its 8 bytes), a
    count that is not zero and flags that are known; the crc decides.
    """
    header = re.compile(rb"(?s)(?=" + firsts + rb".{8}(?!\0{4}).{4}\0{3}[\0-\3])")
    base = position + 1
    while base < size_bytes:
        data = memoryview(os.pread(fd, _CHUNK_BYTES + 64, base))
        for match in header.finditer(data):
            candidate = base + match.start() - _FIRST_AT
            if candidate > position and _valid_at(fd, candidate, belongs):
                return candidate
        base += _CHUNK_BYTES
    return None


def _valid_at(fd: int, position: int, belongs: Callable[[LogBatch], bool]) -> bool:
    want = 64
    for _ in range(2):
        data = memoryview(os.pread(fd, want, position))
        try:
            return belongs(read_batch(data, 0))
        except ShortBatch as short:
            want = short.need_bytes
        except BadBatch:
            return False
    return False


def set_aside(fd: int, segment: Segment, position: int, resume: int) -> Damage:
    """Copy damaged bytes out, and let readers step over them."""
    damage = copy_damage(fd, segment.path, position, resume)
    segment.holes[position] = resume
    return damage


def _set_aside_if_room(fd: int, segment: Segment, position: int, resume: int) -> Damage:
    damage = copy_damage_if_room(fd, segment.path, position, resume)
    segment.holes[position] = resume
    return damage


def copy_damage(fd: int, path: str, position: int, resume: int) -> Damage:
    """Copy the damaged bytes of a file to a .bad file."""
    data = os.pread(fd, resume - position, position)
    kept_in, is_there = _bad_file_for(f"{path}.{position}", data)
    if not is_there:
        write_whole(kept_in, data, sync=False)
    return Damage(path, position, resume - position, kept_in)


def _bad_file_for(stem: str, data: bytes) -> tuple[str, bool]:
    """The name of a .bad file for these bytes, and whether it has them already. A file with other
    bytes is of earlier damage: names of files of the write-ahead log are used again, and positions
    after a cut."""
    number = 0
    while True:
        path = f"{stem}.{number}{BAD}" if number else f"{stem}{BAD}"
        try:
            if read_whole(path) == data:
                return path, True
        except FileNotFoundError:
            return path, False
        except NotAFile:
            pass
        number += 1


def copy_damage_if_room(fd: int, path: str, position: int, resume: int) -> Damage:
    """As `copy_damage`; without room for a copy, the file itself has to be kept."""
    try:
        return copy_damage(fd, path, position, resume)
    except OSError as error:
        if not lacks_room(error):
            raise
        return Damage(path, position, resume - position, path)


def _cut(fd: int, segment: Segment, position: int, *, whole: bool) -> Damage:
    """Cut a tail off; a `whole` batch in it may have been acknowledged, and is kept."""
    size_bytes = segment.size_bytes
    tail = os.pread(fd, size_bytes - position, position) if whole else b""
    damage = Damage(segment.path, position, size_bytes - position, "")
    if tail.strip(b"\0"):
        damage = _set_aside_if_room(fd, segment, position, size_bytes)
        if damage.kept_in == segment.path:
            return damage
        del segment.holes[position]
    os.ftruncate(fd, position)
    segment.size_bytes = position
    return damage
