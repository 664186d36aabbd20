"""The arguments of `Consumer` that other classes pass on to it."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypedDict

from pumpline.client.around import Around
from pumpline.client.consuming.codec import Decode
from pumpline.client.consuming.message import Message
from pumpline.client.settings import Settings

DEAD_LETTER: Literal["dead-letter"] = "dead-letter"
DROP: Literal["drop"] = "drop"
OnGivingUp = Callable[[Message], Awaitable[object] | object]
GivingUp = Literal["dead-letter", "drop"] | OnGivingUp


class ConsumerArguments(TypedDict, total=False):
    """All but the topic, the channel and the addresses."""

    max_in_flight: int
    max_attempts: int
    giving_up: GivingUp
    auto_touch: bool
    type: Any
    codec: Decode | None
    middleware: Iterable[Around[Message]]
    settings: Settings | None
