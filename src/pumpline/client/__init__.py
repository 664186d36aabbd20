"""Clients of nsqd and nsqlookupd, for asyncio, on the standard library alone.

All public names can be imported from here. `pumpline.sync` has the same classes without asyncio.
"""

from pumpline.client.consuming.consumer import Consumer
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.outcomes import Drop, Retry
from pumpline.client.consuming.topic_group import TopicGroup
from pumpline.client.errors import (
    AuthRequiredError,
    ConnectError,
    ConnectionClosedError,
    MissingExtraError,
    NotSentError,
    PublishError,
    PumplineError,
    RefusedError,
    ServerError,
    StalledError,
    UnconfirmedError,
)
from pumpline.client.publishing.outgoing import Outgoing
from pumpline.client.publishing.producer import Producer
from pumpline.client.settings import Settings

__all__ = [
    "AuthRequiredError",
    "Batch",
    "ConnectError",
    "ConnectionClosedError",
    "Consumer",
    "Drop",
    "Message",
    "MissingExtraError",
    "NotSentError",
    "Outgoing",
    "Producer",
    "PublishError",
    "PumplineError",
    "RefusedError",
    "Retry",
    "ServerError",
    "Settings",
    "StalledError",
    "TopicGroup",
    "UnconfirmedError",
]
