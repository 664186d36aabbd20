"""Store messages in a database, hundreds in a transaction, each of them once.

python examples/consume_batches.py 127.0.0.1:4150 orders.sqlite
"""

import asyncio
import signal
import sqlite3
import sys

from pumpline.client import Consumer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
FILE = sys.argv[2] if len(sys.argv) > 2 else ":memory:"


async def main() -> None:
    database = sqlite3.connect(FILE)
    # NSQ delivers at least once. The id as primary key makes a second delivery harmless.
    database.execute("create table if not exists orders (id text primary key, body blob)")
    consumer = Consumer("orders", "archive", nsqd=NSQD, max_in_flight=2000)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop_soon)
    async with consumer:
        async for batch in consumer.batches(500, wait_s=0.1):
            rows = [(message.id, message.body) for message in batch]
            with database:
                database.executemany("insert or ignore into orders values (?, ?)", rows)
            batch.finish()  # the rows are stored, so nsqd need not deliver them again
    [(count,)] = database.execute("select count(*) from orders")
    print(f"{count} orders stored")


asyncio.run(main())
