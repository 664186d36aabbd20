"""Bodies of messages: which values are valid, and how they are cut into blocks and MPUBs.

Knows the limits it is given and the layout of an MPUB; must not know who sends them.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from pumpline.core.messages.publish_tokens import is_valid_token
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


def taken_whole(bodies: Iterable[Body], size_max: int) -> list[bytes]:
    """All of them, which must fit into one MPUB; ValueError if they do not."""
    taken: list[bytes] = []
    size = MPUB_OVERHEAD_BYTES
    for block in blocks(bodies, size_max):
        some = [body if isinstance(body, bytes) else bytes_of(body) for body in block]
        size += sum(map(len, some)) + MPUB_MESSAGE_OVERHEAD_BYTES * len(some)
        if size > size_max:
            raise ValueError(
                f"messages with one token must fit into one MPUB of {size_max} bytes "
                "(body_bytes_max): publish them in parts, each with a token of its own"
            )
        taken += some
    return taken


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


def check_token(token: str) -> None:
    given: object = token
    if not isinstance(given, str):
        raise TypeError(f"a publish token is text, not {type(given).__name__}")
    if not is_valid_token(given):
        allowed = "1 to 64 characters of A-Z a-z 0-9 . _ : -"
        raise ValueError(f"{given[:80]!r} is no publish token: it has {allowed}")


def json_body(value: object) -> bytes:
    """Compact UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
