"""Handle orders: ten at a time, with retries; those that fail go to the topic orders.dlq.

python examples/consume_handler.py 127.0.0.1:4150
"""

import asyncio
import json
import logging
import sys

from pumpline.client import Consumer, Message, Retry, Settings

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def bill(message: Message) -> None:
    """Returning finishes the message; raising requeues it."""
    order = json.loads(message.body)
    if order["customer"] is None and message.attempts < 2:
        # Only this order has to wait: try it again soon, and do not slow the others down.
        raise Retry(0.1)
    await asyncio.sleep(0.01)  # stands for a call to a database
    print(f"order {order['number']} billed, attempt {message.attempts}")


async def main() -> None:
    consumer = Consumer(
        "orders",
        "billing",
        nsqd=NSQD,
        max_in_flight=50,
        max_attempts=2,
        settings=Settings(requeue_delay_s=0.1, backoff_multiplier_s=0.05),
    )
    await consumer.run(bill, concurrency=10)
    print(f"{consumer.counters.finished} messages finished")


logging.basicConfig(level=logging.CRITICAL)  # failures are part of this example
asyncio.run(main())
