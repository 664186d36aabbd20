"""Prints messages of a channel: each is finished when it was printed."""

from collections.abc import Iterator

from pumpline.client import Batch, Consumer
from pumpline.tools.nsq_tail.display import Display
from pumpline.tools.nsq_tail.formats import TailedMessage


async def tail_channel(consumer: Consumer, display: Display) -> None:
    """Until the consumer is stopped."""
    consumer.start()
    async for batch in consumer.batches(max(1, consumer.max_in_flight)):
        seen = await display.show(_tailed(consumer.topic, batch))
        for message in batch[:seen]:
            message.finish()
        for message in batch[seen:]:
            message.requeue(0, backoff=False)
    await consumer.stop()


def _tailed(topic: str, batch: Batch) -> Iterator[TailedMessage]:
    for message in batch:
        yield TailedMessage(
            topic=topic,
            node=message.node,
            id=message.id,
            timestamp_ns=message.timestamp_ns,
            attempts=message.attempts,
            body=message.body,
        )
