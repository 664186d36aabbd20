"""Publish to several nsqds: the first that is up is used. Each failure says what is known.

python examples/failover.py 127.0.0.1:4150 127.0.0.1:5150
"""

import asyncio
import sys

from pumpline.client import NotSentError, Producer, RefusedError, UnconfirmedError

NSQDS = sys.argv[1:] or ["127.0.0.1:4150", "127.0.0.1:5150"]


async def charge(producer: Producer, order: int) -> str:
    try:
        await producer.publish("charges", b'{"order": %d}' % order)
    except NotSentError as error:
        return f"order {order}: no nsqd has it, so it may be tried again elsewhere ({error})"
    except UnconfirmedError as error:
        # With retry_unconfirmed=False the producer never sends such a message again by itself.
        return f"order {order}: an nsqd may have it or not; look before charging again ({error})"
    except RefusedError as error:
        return f"order {order}: nsqd does not want it, and never will ({error.code})"
    return f"order {order}: published"


async def main() -> None:
    async with Producer(NSQDS, retry_unconfirmed=False, timeout_s=5.0) as producer:
        for order in range(3):
            print(await charge(producer, order))


asyncio.run(main())
