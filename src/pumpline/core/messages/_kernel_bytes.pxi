"""Included by `_kernels.pyx`: the sizes of things, and functions that read and write single fields
and messages. None of them is visible to Python."""

cdef enum:
    DELAY_DIGITS_MAX = 12  # no due time overflows
    BATCH_HEADER = 32  # length, crc, first, timestamp, count, flags
    FRAME_OVERHEAD = 34  # size, type, timestamp, attempts, id
    ID_BYTES = 16
    NO_DIGIT = 128
    NS_PER_MS = 1000000
    PUB_LINE_BYTES_MAX = 80  # with the longest name of a topic
    TOUCH_BYTES = 23  # `TOUCH <id>` and a newline
    SIZE_MAX = 0x7FFFFFFF  # sizes are signed on the wire

cdef const char* HEX = b"0123456789abcdef"
cdef unsigned char DIGITS[256]  # what each character stands for

for _character in range(256):
    DIGITS[_character] = NO_DIGIT
for _digit in range(16):
    DIGITS[<unsigned char>HEX[_digit]] = _digit


cdef inline uint32_t get_u32(const unsigned char* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t get_u64(const unsigned char* p) noexcept nogil:
    return (<uint64_t>get_u32(p) << 32) | get_u32(p + 4)


cdef inline void put_u32(unsigned char* p, uint32_t v) noexcept nogil:
    p[0] = v >> 24
    p[1] = (v >> 16) & 255
    p[2] = (v >> 8) & 255
    p[3] = v & 255


cdef inline void put_frame(
    unsigned char* p, uint64_t message_id, uint64_t timestamp, const unsigned char* body, uint32_t n
) noexcept nogil:
    cdef int i
    put_u32(p, n + FRAME_OVERHEAD - 4)
    put_u32(p + 4, 2)
    put_u32(p + 8, <uint32_t>(timestamp >> 32))
    put_u32(p + 12, <uint32_t>timestamp)
    p[16] = 0
    p[17] = 1
    for i in range(16):
        p[18 + i] = HEX[(message_id >> (60 - 4 * i)) & 15]
    memcpy(p + FRAME_OVERHEAD, body, n)


cdef unsigned char* grow(bytearray target, Py_ssize_t extra) except NULL:
    """Lengthen `target` by `extra` bytes; return where the new bytes begin."""
    cdef Py_ssize_t old = PyByteArray_GET_SIZE(target)
    if PyByteArray_Resize(target, old + extra) < 0:
        raise MemoryError
    return <unsigned char*>PyByteArray_AS_STRING(target) + old


cdef inline Py_ssize_t delay_end(const unsigned char* p, Py_ssize_t pos, Py_ssize_t end,
                                 int64_t limit, int64_t* delay) noexcept nogil:
    """Where the digits of a delay end, which a newline follows; -1 if it is not as it should be."""
    cdef Py_ssize_t at = pos
    delay[0] = 0
    while at < end and at - pos < DELAY_DIGITS_MAX and 48 <= p[at] <= 57:
        delay[0] = 10 * delay[0] + (p[at] - 48)
        at += 1
    if at == pos or at >= end or p[at] != 10 or delay[0] > limit:
        return -1
    return at


cdef inline Py_ssize_t messages_end(const unsigned char* p, Py_ssize_t pos, Py_ssize_t end,
                                    uint32_t count, Py_ssize_t limit) noexcept nogil:
    """Where `count` messages end, each with its size before it; -1 if one is not as it should be."""
    cdef uint32_t i
    cdef uint32_t n
    for i in range(count):
        if end - pos < 4:
            return -1
        n = get_u32(p + pos)
        if n == 0 or <Py_ssize_t>n > limit or end - pos - 4 < <Py_ssize_t>n:
            return -1
        pos += 4 + n
    return pos


cdef inline bint get_id(const unsigned char* p, uint64_t* found) noexcept nogil:
    """Read an id; false if it is not one."""
    cdef uint64_t message_id = 0
    cdef unsigned char seen = 0
    cdef unsigned char digit
    cdef int i
    for i in range(ID_BYTES):
        digit = DIGITS[p[i]]
        seen |= digit
        message_id = (message_id << 4) | (digit & 15)
    found[0] = message_id
    return seen < NO_DIGIT
