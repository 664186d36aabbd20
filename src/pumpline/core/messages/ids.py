"""Message ids: a base fixed when a log is created, plus the offset of the message.

| bits  | of the base                              |
|-------|------------------------------------------|
| 63-54 | node id                                  |
| 53-0  | milliseconds since 2020, shifted left 12 |

A log would have to take more than 4,096 messages a millisecond, all its life, before its ids could
meet those of a log created later on the same node: ids stay unique across nodes, restarts and
topics deleted and created again. On the wire an id is 16 lower-case hexadecimal digits.
"""

_EPOCH_2020_MS = 1_577_836_800_000
_NODE_SHIFT = 54
_MS_SHIFT = 12
_HEX_DIGITS = frozenset(b"0123456789abcdef")


def new_base(node_id: int, wall_ns: int) -> int:
    since_ms = max(wall_ns // 1_000_000 - _EPOCH_2020_MS, 0)
    return node_id << _NODE_SHIFT | (since_ms << _MS_SHIFT) & ((1 << _NODE_SHIFT) - 1)


def offset_of(raw: bytes, base_id: int) -> int:
    """The offset behind an id on the wire; -1 if it cannot be one of this log's."""
    if not _HEX_DIGITS.issuperset(raw):
        return -1
    return int(raw, 16) - base_id
