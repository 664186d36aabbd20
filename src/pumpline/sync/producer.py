"""`pumpline.client.Producer` for threads: the same name, options, calls and exceptions.

Knows the asyncio producer and the loop's thread; must not know connections.
"""

from collections import deque
from collections.abc import Iterable
from typing import Self, TypedDict, Unpack

from pumpline import client
from pumpline.client.around import Around
from pumpline.client.connection.address import list_of_addresses
from pumpline.client.delay import Delay
from pumpline.client.errors import NotSentError, PublishError, less_certain
from pumpline.client.publishing.bodies import Body, blocks, json_body, taken_whole
from pumpline.client.publishing.codec import Encode, new_encode
from pumpline.client.publishing.outgoing import Outgoing
from pumpline.client.publishing.producer import BODY_BYTES_MAX, WhenDown
from pumpline.client.settings import Settings
from pumpline.sync.loop_thread import ClientClosedError, LoopCall, LoopThread, PerProcess, result_of

CHUNKS_UNDER_WAY_MAX = 4  # of publish_many: enough that neither thread waits for the other


class ProducerArguments(TypedDict, total=False):
    """The arguments of `pumpline.client.Producer`, but for its addresses."""

    settings: Settings | None
    spread: bool
    batching: bool
    batch_delay_s: float
    timeout_s: float
    confirm_timeout_s: float
    retry_unconfirmed: bool
    idempotent: bool
    lazy: bool
    when_down: WhenDown
    codec: Encode | None
    middleware: Iterable[Around[Outgoing]]
    message_bytes_max: int
    body_bytes_max: int
    pending_bytes_max: int


class Producer:
    """As `pumpline.client.Producer`: the same options, calls and exceptions."""

    def __init__(
        self, addresses: str | Iterable[str], **arguments: Unpack[ProducerArguments]
    ) -> None:
        given = list_of_addresses(addresses)
        arguments["middleware"] = tuple(
            arguments.get("middleware", ())
        )  # it is used more than once
        client.Producer(given, **arguments)  # raises here if an option is wrong

        async def start() -> client.Producer:
            producer = client.Producer(given, **arguments)
            await producer.start()
            return producer

        self._client = PerProcess(start)
        self._encode = new_encode(arguments.get("codec"))
        self._body_bytes_max = arguments.get("body_bytes_max", BODY_BYTES_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect; ConnectError if no nsqd can be reached, unless it is lazy. The first publish
        does it, too."""
        self._started()

    def close(self) -> None:
        """Wait for pending messages, within their time, and disconnect."""
        if running := self._client.take(for_ever=True):
            thread, producer = running
            thread.run(producer.close())

    def publish(
        self, topic: str, body: Body, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a message, and return when nsqd has confirmed it."""
        thread, producer = self._started()
        thread.run(producer.publish(topic, body, defer=defer, token=token))

    def publish_json(
        self, topic: str, value: object, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a value as JSON. ValueError or TypeError if it cannot be JSON."""
        self.publish(topic, json_body(value), defer=defer, token=token)

    def publish_value(
        self, topic: str, value: object, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a value as the `codec` encodes it, by default as JSON by msgspec."""
        self.publish(topic, self._encode(value), defer=defer, token=token)

    def publish_many(self, topic: str, bodies: Iterable[Body], *, token: str | None = None) -> None:
        """Publish messages by MPUB. The iterable runs in the calling thread. With a `token`, all of
        them go as one MPUB.

        If it fails, `confirmed` of the exception is how many are known to be published.
        """
        thread, producer = self._started()
        if token is not None:
            whole = taken_whole(bodies, self._body_bytes_max)
            thread.run(producer.publish_many(topic, whole, token=token))
            return
        under_way: deque[tuple[int, LoopCall[None]]] = deque()
        confirmed = 0
        try:
            for chunk in blocks(bodies, self._body_bytes_max // 2):
                under_way.append((len(chunk), thread.ask(producer.publish_many(topic, chunk))))
                if len(under_way) == CHUNKS_UNDER_WAY_MAX:
                    confirmed += _count(under_way)
            while under_way:
                confirmed += _count(under_way)
        except PublishError as first:
            error = first
            confirmed += first.confirmed
            while under_way:
                try:
                    confirmed += _count(under_way)
                except PublishError as another:
                    confirmed += another.confirmed
                    error = less_certain(error, another)
            error.confirmed = confirmed
            raise error from error.__cause__
        except BaseException:
            for _, call in under_way:
                call.cancel()
            raise

    @property
    def connected(self) -> list[str]:
        """The addresses of the nsqds that can be published to now."""
        running = self._client.get()
        return [] if running is None else running[1].connected

    @property
    def published(self) -> int:
        """The number of messages confirmed since it connected in this process."""
        running = self._client.get()
        return 0 if running is None else running[1].published

    def _started(self) -> tuple[LoopThread, client.Producer]:
        try:
            return self._client.started()
        except ClientClosedError:
            raise NotSentError("not sent: the producer is closed") from None


def _count(under_way: deque[tuple[int, LoopCall[None]]]) -> int:
    """How many messages the oldest of them has published."""
    count, call = under_way.popleft()
    result_of(call)
    return count
