"""Count words in messages, one message at a time, until SIGTERM.

python examples/consume_iterate.py 127.0.0.1:4150
"""

import asyncio
import signal
import sys
from collections import Counter

from pumpline.client import Consumer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def main() -> None:
    words = Counter[str]()
    consumer = Consumer("lines", "count", nsqd=NSQD, max_in_flight=200)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop_soon)
    async with consumer:
        async for message in consumer:
            try:
                line = message.body.decode()
            except UnicodeDecodeError as error:
                # This message will never be text, so finish it: a redelivery would fail again.
                print(f"message {message.id} is left out: {error}")
            else:
                words.update(line.split())
            message.finish()
    print(f"{words.total()} words, {len(words)} of them different")


asyncio.run(main())
