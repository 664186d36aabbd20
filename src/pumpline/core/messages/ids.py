"""Message ids: a base drawn when a log is created, plus the offset of the message.

A base is 63 random bits, so ids fit in 64 bits whatever the offset. The ids of a log are a dense
interval. Two logs share ids with a probability of the sum of their lengths over 2^63: 1 in 4
billion for two logs of a billion messages each. So ids are unique across nodes, topics, restarts
and topics that were deleted and created again, without a node's number or a clock in them.
On the wire an id is 16 lower-case hexadecimal digits.
"""

BASE_SEED_BYTES = 8

_HEX_DIGITS = frozenset(b"0123456789abcdef")


def new_base(seed: bytes) -> int:
    """The base for a new log, from BASE_SEED_BYTES random bytes."""
    return int.from_bytes(seed, "big") >> 1


def offset_of(raw: bytes, base_id: int) -> int:
    """The offset behind an id on the wire; -1 if it cannot be one of this log's."""
    if not _HEX_DIGITS.issuperset(raw):
        return -1
    return int(raw, 16) - base_id
