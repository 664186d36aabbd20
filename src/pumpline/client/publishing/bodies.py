"""Bodies of messages: which values are valid, and how they are cut into blocks and MPUBs.

Knows the limits it is given and the layout of an MPUB; must not know who sends them.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from pumpline.core.protocol.commands import MPUB_MESSAGE_OVERHEAD_BYTES, MPUB_OVERHEAD_BYTES
from pumpline.core.text.names import is_valid_name

BATCH_MESSAGES_MAX = 2000
TAKEN_AT_ONCE = 50  # messages taken from the user's iterable before their size is checked

Body = bytes | bytearray | memoryview


def blocks(bodies: Iterable[Body], bytes_max: int) -> Iterator[list[Body]]:
    """At most BATCH_MESSAGES_MAX at a time. Of what is no list, which may make its bodies one by
    one, at most TAKEN_AT_ONCE after bytes_max."""
    if isinstance(bodies, list):
        for begin in range(0, len(bodies), BATCH_MESSAGES_MAX):
            yield bodies[begin : begin + BATCH_MESSAGES_MAX]
        return
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
        raise TypeError(f"publish_many takes a list of bytes, not {type(bodies).__name__}")
    remaining = iter(bodies)
    while True:
        block: list[Body] = []
        size_bytes = 0
        while len(block) < BATCH_MESSAGES_MAX and size_bytes < bytes_max:
            some = list(islice(remaining, TAKEN_AT_ONCE))
            if not some:
                break
            with suppress(
                TypeError
            ):  # a body without a length is refused later, with a better text
                size_bytes += sum(map(len, some))
            block += some
        if not block:
            return
        yield block


def portions(bodies: list[bytes], size_max: int) -> Iterator[list[bytes]]:
    """What fits into one MPUB each."""
    portion: list[bytes] = []
    size = MPUB_OVERHEAD_BYTES
    for body in bodies:
        size += MPUB_MESSAGE_OVERHEAD_BYTES + len(body)
        if portion and size > size_max:
            yield portion
            portion = []
            size = MPUB_OVERHEAD_BYTES + MPUB_MESSAGE_OVERHEAD_BYTES + len(body)
        portion.append(body)
    yield portion


def bytes_of(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message is bytes, not {type(body).__name__}")


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    if not is_valid_name(topic):
        raise ValueError(f"{topic!r} is not a valid topic name")


def json_body(value: object) -> bytes:
    """Compact UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
