"""What middleware can say of a publish or of a handler: its outcome, its time, its messages."""

import asyncio
from collections.abc import Sized

from pumpline.client.consuming.message import Message
from pumpline.client.consuming.outcomes import Drop, Retry
from pumpline.client.publishing.outgoing import Outgoing

Observed = Message | Outgoing
"""A message around a handler; an `Outgoing` around a publish."""

OK = "ok"
_EXPECTED = {Retry: "retry", Drop: "drop", asyncio.CancelledError: "cancelled"}


def outcome_of(error: BaseException) -> str:
    """`retry` and `drop` if a handler has asked for it; `cancelled`; otherwise `error`."""
    return next((name for kind, name in _EXPECTED.items() if isinstance(error, kind)), "error")


def message_count(outgoing: Outgoing) -> int | None:
    """None if the bodies are not in memory: counting them would consume them."""
    return len(outgoing.bodies) if isinstance(outgoing.bodies, Sized) else None
