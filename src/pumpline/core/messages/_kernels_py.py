"""The plain-Python form of the kernels: the same results as `_kernels`, byte for byte.

Used where no compiler was at hand at install time, or with PUMPLINE_KERNELS=python. See
`pumpline.core.messages.kernels` for what each function does.
"""

from struct import Struct

_U16 = Struct(">H")
_U32 = Struct(">I")
_I64 = Struct(">q")
_FRAME_HEAD = Struct(">IIQH")
_BATCH_HEADER = Struct(">I4xQ8xI4x")  # length, first, count
_FRAME_OVERHEAD_BYTES = 34
_ATTEMPTS_AT = 16
_ID_BYTES = 16
_PUB_LINE_BYTES_MAX = 80
_TOUCH_BYTES = 23
_DELAY_DIGITS_MAX = 12  # no due time overflows
_NS_PER_MS = 1_000_000
_SIZE_MAX = 0x7FFFFFFF  # sizes are signed on the wire
_ID_MASK = 0xFFFFFFFFFFFFFFFF
_HEX_DIGITS = frozenset(b"0123456789abcdef")
_SMALL_SIZES = tuple(map(_U32.pack, range(2048)))  # 70 KB, for most messages


def unfilled(size: int) -> bytearray:
    return bytearray(size)


def pubs(
    buf: bytearray,
    pos: int,
    end: int,
    line: bytes,
    frames: bytearray,
    ends: bytearray,
    first_id: int,
    timestamp: int,
    limit: int,
) -> tuple[int, int]:
    head_bytes = len(line) + 4
    limit = min(limit, _SIZE_MAX)
    count = 0
    while end - pos >= head_bytes and buf.startswith(line, pos):
        body_at = pos + head_bytes
        size = _U32.unpack_from(buf, body_at - 4)[0]
        if size == 0 or size > limit or end - body_at < size:
            break
        pos = body_at + size
        frames += _FRAME_HEAD.pack(size + 30, 2, timestamp, 1)
        frames += b"%016x" % (first_id + count & _ID_MASK)
        frames += buf[body_at:pos]
        ends += _U32.pack(len(frames))
        count += 1
    return pos, count


def dpubs(
    buf: bytearray,
    pos: int,
    end: int,
    head: bytes,
    frames: bytearray,
    ends: bytearray,
    dues: bytearray,
    first_id: int,
    timestamp: int,
    limit: int,
    delay_limit: int,
) -> tuple[int, int]:
    limit = min(limit, _SIZE_MAX)
    count = 0
    while pos < end and buf.startswith(head, pos):
        digits_at = pos + len(head)
        newline = buf.find(b"\n", digits_at, min(end, digits_at + _DELAY_DIGITS_MAX + 1))
        digits = bytes(buf[digits_at : max(newline, digits_at)])
        body_at = newline + 5
        if not digits.isdigit() or body_at > end:
            break
        delay_ms = int(digits)
        size = _U32.unpack_from(buf, newline + 1)[0]
        if delay_ms > delay_limit or size == 0 or size > limit or end - body_at < size:
            break
        pos = body_at + size
        frames += _FRAME_HEAD.pack(size + 30, 2, timestamp, 1)
        frames += b"%016x" % (first_id + count & _ID_MASK)
        frames += buf[body_at:pos]
        ends += _U32.pack(len(frames))
        dues += _I64.pack(timestamp + delay_ms * _NS_PER_MS if delay_ms else 0)
        count += 1
    return pos, count


def publishes_by_line(
    buf: bytearray,
    pos: int,
    end: int,
    batches: dict[bytes, tuple[bytearray, bytearray, int]],
    frames: bytearray,
    ends: bytearray,
    lines: list[bytes],
    timestamp: int,
    limit: int,
    body_limit: int,
    full: int,
) -> tuple[int, int]:
    limit = min(limit, _SIZE_MAX)
    commands = 0
    verb = buf[pos : pos + 1]
    while pos < end and buf[pos : pos + 1] == verb:
        newline = buf.find(b"\n", pos, min(end, pos + _PUB_LINE_BYTES_MAX))
        body_at = newline + 5
        if newline < 0 or body_at > end:
            break
        size = _U32.unpack_from(buf, newline + 1)[0]
        line = bytes(buf[pos : newline + 1])
        batch = batches.get(line)
        after = body_at + size
        if batch is None or after > end or len(batch[0]) >= full:
            break
        bodies = [(body_at, after)]
        if verb == b"P":
            if not 0 < size <= limit:
                break
        else:
            if not 4 <= size <= body_limit:
                break
            count = _U32.unpack_from(buf, body_at)[0]
            bodies = _bodies(buf, body_at + 4, after, count, limit)
            if not bodies or len(bodies) != count or bodies[-1][1] != after:
                break
        its_frames, its_ends, first_id = batch
        for start, stop in bodies:
            frame = _FRAME_HEAD.pack(stop - start + 30, 2, timestamp, 1)
            frame += b"%016x" % (first_id + (len(its_ends) >> 2) & _ID_MASK)
            frame += buf[start:stop]
            its_frames += frame
            its_ends += _U32.pack(len(its_frames))
            frames += frame
            ends += _U32.pack(len(frames))
            lines.append(line)
        commands += 1
        pos = after
    return pos, commands


def _bodies(buf: bytearray, pos: int, end: int, count: int, limit: int) -> list[tuple[int, int]]:
    """Where each of at most `count` messages is, whose sizes are before them, as far as they are as
    they should be."""
    found: list[tuple[int, int]] = []
    while len(found) < count and end - pos >= 4:
        size = _U32.unpack_from(buf, pos)[0]
        after = pos + 4 + size
        if size == 0 or size > limit or after > end:
            break
        found.append((pos + 4, after))
        pos = after
    return found


def skip_messages(buf: bytearray, pos: int, end: int, count: int, limit: int) -> tuple[int, int]:
    limit = min(limit, _SIZE_MAX)
    for i in range(count):
        if end - pos < 4:
            return i, pos
        size = _U32.unpack_from(buf, pos)[0]
        after = pos + 4 + size
        if size == 0 or size > limit or after > end:
            return i, pos
        pos = after
    return count, pos


def message(
    buf: bytes | bytearray,
    pos: int,
    end: int,
    frames: bytearray,
    ends: bytearray,
    message_id: int,
    timestamp: int,
) -> None:
    if not 0 <= pos < end <= len(buf) or end - pos > _SIZE_MAX:
        raise ValueError("no message")
    frames += _FRAME_HEAD.pack(end - pos + 30, 2, timestamp, 1)
    frames += b"%016x" % (message_id & _ID_MASK)
    frames += buf[pos:end]
    ends += _U32.pack(len(frames))


def mpub(
    buf: bytearray,
    pos: int,
    end: int,
    count: int,
    frames: bytearray,
    ends: bytearray,
    first_id: int,
    timestamp: int,
    limit: int,
) -> int:
    sizes = []
    limit = min(limit, _SIZE_MAX)
    at = pos
    for i in range(count):
        if end - at < 4:
            return i
        size = _U32.unpack_from(buf, at)[0]
        at += 4 + size
        if size == 0 or size > limit or at > end:
            return i
        sizes.append(size)
    frame_end = len(frames)
    pieces: list[bytes | bytearray] = []
    frame_ends = []
    for message_id, size in enumerate(sizes, first_id):
        pieces.append(_FRAME_HEAD.pack(size + 30, 2, timestamp, 1))
        pieces.append(b"%016x" % (message_id & _ID_MASK))
        pieces.append(buf[pos + 4 : pos + 4 + size])
        frame_end += size + _FRAME_OVERHEAD_BYTES
        frame_ends.append(frame_end)
        pos += 4 + size
    frames += b"".join(pieces)
    ends += Struct(f">{count}I").pack(*frame_ends)
    return -1


def answers(
    buf: bytearray,
    pos: int,
    end: int,
    head: bytes,
    tail: bytes,
    base_id: int,
    leases: dict[int, int],
    spans: list[tuple[int, int]],
) -> int:
    span_start = span_end = -1
    id_at = len(head)
    size = id_at + _ID_BYTES + len(tail)
    while end - pos >= size and buf.startswith(head, pos):
        id_end = pos + id_at + _ID_BYTES
        text = buf[pos + id_at : id_end]
        if not buf.startswith(tail, id_end) or not _HEX_DIGITS.issuperset(text):
            break
        offset = int(text, 16) - base_id
        if leases.pop(offset, None) is None:
            break
        if offset != span_end:
            if span_start >= 0:
                spans.append((span_start, span_end))
            span_start = offset
        span_end = offset + 1
        pos += size
    if span_start >= 0:
        spans.append((span_start, span_end))
    return pos


def touches(
    buf: bytearray,
    pos: int,
    end: int,
    base_id: int,
    leases: dict[int, int],
    caps: dict[int, int],
    deadline: int,
    slack: int,
) -> tuple[int, int]:
    lowest = deadline
    while end - pos >= _TOUCH_BYTES and buf.startswith(b"TOUCH ", pos) and buf[pos + 22] == 10:
        text = buf[pos + 6 : pos + 22]
        if not _HEX_DIGITS.issuperset(text):
            break
        offset = int(text, 16) - base_id
        before = leases.get(offset)
        if before is None:
            break
        cap = caps.get(offset)
        if cap is None:
            cap = caps[offset] = before + slack
        leases[offset] = min(deadline, cap)
        lowest = min(lowest, cap)
        pos += _TOUCH_BYTES
    return pos, lowest


def redeliveries(
    offsets: list[int],
    attempts: list[int],
    first: int,
    ends: memoryview,
    frames: memoryview,
    out: bytearray,
    limit: int,
) -> int:
    count = 0
    for offset, attempt in zip(offsets, attempts, strict=True):
        if len(out) >= limit:
            break
        index = offset - first
        begin = _U32.unpack_from(ends, 4 * index - 4)[0] if index else 0
        at = len(out)
        out += frames[begin : _U32.unpack_from(ends, 4 * index)[0]]
        _U16.pack_into(out, at + _ATTEMPTS_AT, attempt & 0xFFFF)
        count += 1
    return count


def due_run(dues: memoryview, start: int, end: int, time: int) -> int:
    later = [due > time for (due,) in _I64.iter_unpack(dues[8 * start : 8 * end])]
    if len(set(later)) < 2:
        return end
    return start + later.index(not later[0])


def locate(buf: bytearray, pos: int, end: int, first: int, offset: int) -> int:
    end = min(end, len(buf))
    while pos >= 0 and end - pos >= _BATCH_HEADER.size:
        length, its_first, count = _BATCH_HEADER.unpack_from(buf, pos)
        if its_first != first or offset < first:
            break
        if offset - first < count:
            return pos
        first += count
        pos += 4 + length
    return -1


def fin_commands(buf: bytearray, pos: int, end: int, out: bytearray) -> tuple[int, int]:
    count = 0
    while end - pos >= _FRAME_OVERHEAD_BYTES and buf.startswith(b"\0\0\0\2", pos + 4):
        size = _U32.unpack_from(buf, pos)[0]
        if size < _FRAME_OVERHEAD_BYTES - 4 or size > 0x7FFFFFFF or end - pos - 4 < size:
            break
        out += b"FIN "
        out += buf[pos + 18 : pos + 34]
        out += b"\n"
        pos += 4 + size
        count += 1
    return pos, count


def body_bytes(bodies: list[bytes], limit: int) -> int:
    """Passes in C, instead of a step for each message."""
    if not bodies:
        return 0
    if set(map(type, bodies)) != {bytes}:
        return -1
    sizes = list(map(len, bodies))
    if min(sizes) == 0 or max(sizes) > min(limit, _SIZE_MAX):
        return -1
    return sum(sizes)


def mpub_command(line: bytes, bodies: list[bytes]) -> bytes:
    """Passes in C, too: 0.13 us for each message."""
    sizes = list(map(len, bodies))
    size = 4 + 4 * len(sizes) + sum(sizes)
    if size > _SIZE_MAX:
        raise OverflowError(f"an MPUB of {size} bytes")
    small = max(sizes, default=0) < len(_SMALL_SIZES)
    pieces = [b""] * (2 * len(sizes))
    pieces[0::2] = map(_SMALL_SIZES.__getitem__ if small else _U32.pack, sizes)
    pieces[1::2] = bodies
    return b"".join((line, _U32.pack(size), _U32.pack(len(sizes)), *pieces))
