"""Clients of nsqd and nsqlookupd, for asyncio, on the standard library alone.

What there is for users is importable from here; `pumpline.sync` has the same without asyncio.
"""

from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.consumer import Consumer
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.options import ConsumerOptions
from pumpline.client.errors import (
    AuthRequired,
    ConnectError,
    ConnectionClosed,
    MissingExtra,
    NotSent,
    PublishError,
    PumplineError,
    Refused,
    ServerError,
    Stalled,
    Unconfirmed,
)
from pumpline.client.publishing.producer import Producer

__all__ = [
    "AuthRequired",
    "Batch",
    "ConnectError",
    "ConnectionClosed",
    "Consumer",
    "ConsumerOptions",
    "Message",
    "MissingExtra",
    "NotSent",
    "Producer",
    "PublishError",
    "PumplineError",
    "Refused",
    "ServerError",
    "Settings",
    "Stalled",
    "Unconfirmed",
]
