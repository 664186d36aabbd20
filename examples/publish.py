"""Publish from asyncio: one message, many, and one with a delay.

python examples/publish.py 127.0.0.1:4150
"""

import asyncio
import json
import sys
from datetime import timedelta

from pumpline.client import Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def main() -> None:
    async with Producer(NSQD) as producer:
        # Returns when nsqd has confirmed the message, or raises.
        await producer.publish("orders", b'{"order": 1}')

        # nsqd delivers this one in a quarter of an hour.
        await producer.publish("reminders", b'{"order": 1}', defer=timedelta(minutes=15))

        # Sends as few MPUB commands as nsqd's limits allow.
        orders = (json.dumps({"order": number}).encode() for number in range(2, 10_000))
        await producer.publish_many("orders", orders)

        # Publishes that run at the same time are sent together, in a few MPUB commands.
        await asyncio.gather(*(producer.publish("clicks", b"%d" % n) for n in range(1000)))
        print(f"{producer.published} messages published")


asyncio.run(main())
