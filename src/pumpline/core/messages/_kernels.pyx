# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled form of the kernels; `_kernels_py` is the same in plain Python.

A kernel is a loop over messages that plain Python would spend its time in. It sees bytes and
integers, never a connection, topic or channel, and does the valid, complete, common case only:
at anything else it stops, and the caller's slow path finds out what is wrong and says so.
`pumpline.core.messages.kernels` documents each function and picks the form.
"""
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_Contains, PyDict_DelItem, PyDict_GetItem, PyDict_SetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

include "_kernel_bytes.pxi"  # constants, and what writes and reads the parts of messages


def unfilled(Py_ssize_t size):
    if size < 0:
        raise ValueError("negative count")
    return PyByteArray_FromStringAndSize(NULL, size)


def pubs(bytearray buf, Py_ssize_t pos, Py_ssize_t end, bytes line, bytearray frames,
         bytearray ends, uint64_t first_id, uint64_t timestamp, Py_ssize_t limit):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef const char* head = PyBytes_AS_STRING(line)
    cdef Py_ssize_t head_len = PyBytes_GET_SIZE(line)
    cdef Py_ssize_t at = pos
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    cdef uint32_t n
    cdef uint32_t frame_end = PyByteArray_GET_SIZE(frames)
    cdef unsigned char* out
    cdef unsigned char* out_ends
    limit = min(limit, SIZE_MAX)
    while end - at >= head_len + 4 and memcmp(p + at, head, head_len) == 0:
        n = get_u32(p + at + head_len)
        if n == 0 or <Py_ssize_t>n > limit or end - at - head_len - 4 < <Py_ssize_t>n:
            break
        at += head_len + 4 + n
        total += n + FRAME_OVERHEAD
        count += 1
    if count == 0:
        return pos, 0
    out = grow(frames, total)
    out_ends = grow(ends, 4 * count)
    for i in range(count):
        n = get_u32(p + pos + head_len)
        put_frame(out, first_id + <uint64_t>i, timestamp, p + pos + head_len + 4, n)
        out += n + FRAME_OVERHEAD
        frame_end += n + FRAME_OVERHEAD
        put_u32(out_ends + 4 * i, frame_end)
        pos += head_len + 4 + n
    return pos, count


def dpubs(bytearray buf, Py_ssize_t pos, Py_ssize_t end, bytes head, bytearray frames,
          bytearray ends, bytearray dues, uint64_t first_id, uint64_t timestamp,
          Py_ssize_t limit, int64_t delay_limit):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef const char* h = PyBytes_AS_STRING(head)
    cdef Py_ssize_t head_len = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t at = pos
    cdef Py_ssize_t line_end
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    cdef uint32_t n
    cdef int64_t delay = 0
    cdef uint32_t frame_end = PyByteArray_GET_SIZE(frames)
    cdef unsigned char* out
    cdef unsigned char* out_ends
    cdef unsigned char* out_dues
    limit = min(limit, SIZE_MAX)
    while end - at > head_len and memcmp(p + at, h, head_len) == 0:
        line_end = delay_end(p, at + head_len, end, delay_limit, &delay)
        if line_end < 0 or end - line_end < 5:
            break
        n = get_u32(p + line_end + 1)
        if n == 0 or <Py_ssize_t>n > limit or end - line_end - 5 < <Py_ssize_t>n:
            break
        at = line_end + 5 + n
        total += n + FRAME_OVERHEAD
        count += 1
    if count == 0:
        return pos, 0
    out = grow(frames, total)
    out_ends = grow(ends, 4 * count)
    out_dues = grow(dues, 8 * count)
    for i in range(count):
        line_end = delay_end(p, pos + head_len, end, delay_limit, &delay)
        n = get_u32(p + line_end + 1)
        put_frame(out, first_id + <uint64_t>i, timestamp, p + line_end + 5, n)
        out += n + FRAME_OVERHEAD
        frame_end += n + FRAME_OVERHEAD
        put_u32(out_ends + 4 * i, frame_end)
        delay = <int64_t>timestamp + delay * NS_PER_MS if delay else 0
        put_u32(out_dues + 8 * i, <uint32_t>(<uint64_t>delay >> 32))
        put_u32(out_dues + 8 * i + 4, <uint32_t>delay)
        pos = line_end + 5 + n
    return pos, count


def publishes_by_line(bytearray buf, Py_ssize_t pos, Py_ssize_t end, dict batches,
                      bytearray frames, bytearray ends, list lines, uint64_t timestamp,
                      Py_ssize_t limit, Py_ssize_t body_limit, Py_ssize_t full):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef const unsigned char* newline
    cdef const unsigned char* last_line = NULL  # the one before, and its length
    cdef Py_ssize_t last_len = 0
    cdef unsigned char* out
    cdef unsigned char verb = p[pos] if pos < end else 0
    cdef Py_ssize_t head_len
    cdef Py_ssize_t body
    cdef Py_ssize_t after
    cdef Py_ssize_t total
    cdef Py_ssize_t commands = 0
    cdef uint32_t n
    cdef uint32_t i
    cdef uint32_t count
    cdef uint32_t size
    cdef uint64_t first_id = 0
    cdef PyObject* found
    cdef tuple batch
    cdef bytearray its_frames = None
    cdef bytearray its_ends = None
    line = None
    limit = min(limit, SIZE_MAX)
    while pos < end and p[pos] == verb:
        newline = <const unsigned char*>memchr(p + pos, 10, min(end - pos, PUB_LINE_BYTES_MAX))
        if newline is NULL:
            break
        head_len = newline - (p + pos) + 1
        body = pos + head_len + 4
        if end - body < 0:
            break
        n = get_u32(newline + 1)
        if verb == 80:  # P
            if n == 0 or <Py_ssize_t>n > limit or end - body < <Py_ssize_t>n:
                break
            count = 1
            after = body + n
        else:
            if n < 4 or <Py_ssize_t>n > body_limit or end - body < <Py_ssize_t>n:
                break
            count = get_u32(p + body)
            after = body + n
            body += 4
            if count == 0 or messages_end(p, body, after, count, limit) != after:
                break
        if head_len != last_len or memcmp(p + pos, last_line, head_len) != 0:
            line = PyBytes_FromStringAndSize(<const char*>p + pos, head_len)
            found = PyDict_GetItem(batches, line)
            if found is NULL:
                break
            batch = <tuple?>(<object>found)
            its_frames = <bytearray?>batch[0]
            its_ends = <bytearray?>batch[1]
            first_id = batch[2]
            last_line = p + pos
            last_len = head_len
        if PyByteArray_GET_SIZE(its_frames) >= full:
            break
        if verb == 80:
            size = n + FRAME_OVERHEAD
            out = grow(its_frames, size)
            put_frame(out, first_id + <uint64_t>(PyByteArray_GET_SIZE(its_ends) >> 2), timestamp,
                      p + body, n)
            memcpy(grow(frames, size), out, size)
            put_u32(grow(its_ends, 4), <uint32_t>PyByteArray_GET_SIZE(its_frames))
            put_u32(grow(ends, 4), <uint32_t>PyByteArray_GET_SIZE(frames))
            lines.append(line)
        else:
            for i in range(count):
                n = get_u32(p + body)
                size = n + FRAME_OVERHEAD
                out = grow(its_frames, size)
                put_frame(out, first_id + <uint64_t>(PyByteArray_GET_SIZE(its_ends) >> 2),
                          timestamp, p + body + 4, n)
                memcpy(grow(frames, size), out, size)
                put_u32(grow(its_ends, 4), <uint32_t>PyByteArray_GET_SIZE(its_frames))
                put_u32(grow(ends, 4), <uint32_t>PyByteArray_GET_SIZE(frames))
                lines.append(line)
                body += 4 + n
        commands += 1
        pos = after
    return pos, commands


def skip_messages(bytearray buf, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t count,
                  Py_ssize_t limit):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef Py_ssize_t i = 0
    cdef uint32_t n
    limit = min(limit, SIZE_MAX)
    while i < count and end - pos >= 4:
        n = get_u32(p + pos)
        if n == 0 or <Py_ssize_t>n > limit or end - pos - 4 < <Py_ssize_t>n:
            break
        pos += 4 + n
        i += 1
    return i, pos


def message(buf, Py_ssize_t pos, Py_ssize_t end, bytearray frames, bytearray ends,
            uint64_t message_id, uint64_t timestamp):
    cdef const unsigned char* p
    cdef Py_ssize_t size
    if isinstance(buf, bytearray):
        p = <const unsigned char*>PyByteArray_AS_STRING(buf)
        size = PyByteArray_GET_SIZE(buf)
    else:
        p = <const unsigned char*>PyBytes_AS_STRING(<bytes?>buf)
        size = PyBytes_GET_SIZE(buf)
    if not 0 <= pos < end <= size or end - pos > SIZE_MAX:
        raise ValueError("no message")
    put_frame(grow(frames, end - pos + FRAME_OVERHEAD), message_id, timestamp, p + pos, end - pos)
    put_u32(grow(ends, 4), PyByteArray_GET_SIZE(frames))


def mpub(bytearray buf, Py_ssize_t pos, Py_ssize_t end, uint32_t count, bytearray frames,
         bytearray ends, uint64_t first_id, uint64_t timestamp, Py_ssize_t limit):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef Py_ssize_t at = pos
    cdef uint32_t i
    cdef uint32_t n
    cdef uint32_t frame_end = PyByteArray_GET_SIZE(frames)
    cdef unsigned char* out
    cdef unsigned char* out_ends
    limit = min(limit, SIZE_MAX)
    for i in range(count):
        if end - at < 4:
            return i
        n = get_u32(p + at)
        if n == 0 or <Py_ssize_t>n > limit or end - at - 4 < <Py_ssize_t>n:
            return i
        at += 4 + n
    out = grow(frames, at - pos + <Py_ssize_t>count * (FRAME_OVERHEAD - 4))
    out_ends = grow(ends, 4 * <Py_ssize_t>count)
    for i in range(count):
        n = get_u32(p + pos)
        put_frame(out, first_id + i, timestamp, p + pos + 4, n)
        out += n + FRAME_OVERHEAD
        frame_end += n + FRAME_OVERHEAD
        put_u32(out_ends + 4 * <Py_ssize_t>i, frame_end)
        pos += 4 + n
    return -1


def answers(bytearray buf, Py_ssize_t pos, Py_ssize_t end, bytes head, bytes tail,
            uint64_t base_id, dict leases, list spans):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef const char* h = PyBytes_AS_STRING(head)
    cdef const char* t = PyBytes_AS_STRING(tail)
    cdef Py_ssize_t head_len = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t tail_len = PyBytes_GET_SIZE(tail)
    cdef Py_ssize_t size = head_len + ID_BYTES + tail_len
    cdef uint64_t message_id
    cdef uint64_t span_start = 0
    cdef uint64_t span_end = 0
    while end - pos >= size and memcmp(p + pos, h, head_len) == 0:
        if memcmp(p + pos + head_len + ID_BYTES, t, tail_len) != 0:
            break
        if not get_id(p + pos + head_len, &message_id) or message_id < base_id:
            break
        message_id -= base_id
        key = message_id
        if PyDict_Contains(leases, key) != 1:
            break
        PyDict_DelItem(leases, key)
        if message_id != span_end or span_start == span_end:
            if span_start != span_end:
                spans.append((span_start, span_end))
            span_start = message_id
        span_end = message_id + 1
        pos += size
    if span_start != span_end:
        spans.append((span_start, span_end))
    return pos


def touches(bytearray buf, Py_ssize_t pos, Py_ssize_t end, uint64_t base_id, dict leases,
            dict caps, int64_t deadline, int64_t slack):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef object latest = deadline
    cdef int64_t lowest = deadline
    cdef int64_t cap
    cdef uint64_t message_id
    cdef PyObject* found
    while end - pos >= TOUCH_BYTES and memcmp(p + pos, b"TOUCH ", 6) == 0 and p[pos + 22] == 10:
        if not get_id(p + pos + 6, &message_id) or message_id < base_id:
            break
        key = message_id - base_id
        found = PyDict_GetItem(leases, key)
        if found is NULL:
            break
        cap = <int64_t>(<object>found) + slack
        found = PyDict_GetItem(caps, key)
        if found is NULL:
            caps[key] = cap
        else:
            cap = <int64_t>(<object>found)
        if cap >= deadline:
            PyDict_SetItem(leases, key, latest)
        else:
            leases[key] = cap
            lowest = min(lowest, cap)
        pos += TOUCH_BYTES
    return pos, lowest


def redeliveries(list offsets, list attempts, uint64_t first, const unsigned char[::1] ends,
                 const unsigned char[::1] frames, bytearray out, Py_ssize_t limit):
    cdef const unsigned char* e = &ends[0]
    cdef const unsigned char* f = &frames[0]
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t total = PyByteArray_GET_SIZE(out)
    cdef Py_ssize_t i
    cdef uint64_t index
    cdef uint64_t known = ends.shape[0] // 4
    cdef uint32_t begin
    cdef uint32_t size
    cdef uint32_t attempt
    cdef unsigned char* q
    for i in range(len(offsets)):
        if total >= limit:
            break
        index = <uint64_t>offsets[i] - first
        if index >= known:
            raise IndexError("an offset that the batch does not have")
        total += get_u32(e + 4 * index) - (get_u32(e + 4 * index - 4) if index else 0)
        count += 1
    q = grow(out, total - PyByteArray_GET_SIZE(out))
    for i in range(count):
        index = <uint64_t>offsets[i] - first
        begin = get_u32(e + 4 * index - 4) if index else 0
        size = get_u32(e + 4 * index) - begin
        memcpy(q, f + begin, size)
        attempt = attempts[i]
        q[16] = (attempt >> 8) & 255
        q[17] = attempt & 255
        q += size
    return count


def due_run(const unsigned char[::1] dues, Py_ssize_t start, Py_ssize_t end, int64_t time):
    cdef const unsigned char* p
    cdef bint is_later
    end = min(end, dues.shape[0] // 8)
    if not 0 <= start < end:
        return end
    p = &dues[0]
    is_later = <int64_t>get_u64(p + 8 * start) > time
    while start < end and (<int64_t>get_u64(p + 8 * start) > time) == is_later:
        start += 1
    return start


def locate(bytearray buf, Py_ssize_t pos, Py_ssize_t end, uint64_t first, uint64_t offset):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef uint32_t count
    end = min(end, PyByteArray_GET_SIZE(buf))
    while pos >= 0 and end - pos >= BATCH_HEADER:
        if get_u64(p + pos + 8) != first or offset < first:
            break
        count = get_u32(p + pos + 24)
        if offset - first < count:
            return pos
        first += count
        pos += 4 + <Py_ssize_t>get_u32(p + pos)
    return -1


def fin_commands(bytearray buf, Py_ssize_t pos, Py_ssize_t end, bytearray out):
    cdef const unsigned char* p = <const unsigned char*>PyByteArray_AS_STRING(buf)
    cdef Py_ssize_t at = pos
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    cdef int32_t n
    cdef unsigned char* q
    while end - at >= FRAME_OVERHEAD and get_u32(p + at + 4) == 2:
        n = <int32_t>get_u32(p + at)
        if n < FRAME_OVERHEAD - 4 or end - at - 4 < n:
            break
        at += 4 + n
        count += 1
    if count:
        q = grow(out, 21 * count)
        for i in range(count):
            memcpy(q, b"FIN ", 4)
            memcpy(q + 4, p + pos + 18, 16)
            q[20] = 10
            q += 21
            pos += 4 + <int32_t>get_u32(p + pos)
    return at, count


def body_bytes(list bodies, Py_ssize_t limit):
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i, n
    cdef PyObject* body
    limit = min(limit, SIZE_MAX)
    for i in range(PyList_GET_SIZE(bodies)):
        body = PyList_GET_ITEM(bodies, i)
        if not PyBytes_CheckExact(<object>body):
            return -1
        n = PyBytes_GET_SIZE(<object>body)
        if n == 0 or n > limit:
            return -1
        total += n
    return total


def mpub_command(bytes line, list bodies):
    cdef Py_ssize_t line_len = PyBytes_GET_SIZE(line)
    cdef Py_ssize_t count = PyList_GET_SIZE(bodies)
    cdef Py_ssize_t size = 4 + 4 * count
    cdef Py_ssize_t i, n
    cdef PyObject* body
    for i in range(count):
        body = PyList_GET_ITEM(bodies, i)
        if not PyBytes_CheckExact(<object>body):
            raise TypeError(f"a message is bytes, not {type(<object>body).__name__}")
        size += PyBytes_GET_SIZE(<object>body)
    if size > SIZE_MAX:
        raise OverflowError(f"an MPUB of {size} bytes")
    command = PyBytes_FromStringAndSize(NULL, line_len + 4 + size)
    cdef unsigned char* out = <unsigned char*>PyBytes_AS_STRING(command)
    memcpy(out, PyBytes_AS_STRING(line), line_len)
    put_u32(out + line_len, <uint32_t>size)
    put_u32(out + line_len + 4, <uint32_t>count)
    out += line_len + 8
    for i in range(count):
        body = PyList_GET_ITEM(bodies, i)
        n = PyBytes_GET_SIZE(<object>body)
        put_u32(out, <uint32_t>n)
        memcpy(out + 4, PyBytes_AS_STRING(<object>body), n)
        out += 4 + n
    return command
