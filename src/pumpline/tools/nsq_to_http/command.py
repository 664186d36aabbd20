"""The nsq_to_http command: consumes topics and sends each message as a request."""

import asyncio
import sys
from collections.abc import Sequence

from pumpline.tools.nsq_to_http.options import ToHttpOptions
from pumpline.tools.tool import Signals, Tool

EXAMPLES = """
nsq_to_http --topic=orders --lookupd-http-address=127.0.0.1:4161 --post=http://127.0.0.1:8080/orders
nsq_to_http --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --get='http://127.0.0.1:8080/seen?order=%s' --header='Authorization: Bearer secret'
nsq_to_http --topic=orders --nsqd-tcp-address=127.0.0.1:4150 --retry-status=429,500-599 \\
    --retry-after --post=http://127.0.0.1:8080/orders
"""


async def work(options: ToHttpOptions, signals: Signals) -> None:
    from pumpline.tools.nsq_to_http.requests import Requests  # aiohttp, which --help does not need

    # Touched, since a request may take longer than nsqd waits.
    consumers = [
        options.new_consumer(topic, options.channel, auto_touch=True) for topic in options.topic
    ]
    await options.check_nsqds()
    requests = Requests(options)
    try:
        running = [
            asyncio.create_task(consumer.run(requests.send, concurrency=options.n))
            for consumer in consumers
        ]
        stopped = asyncio.create_task(signals.stop.wait())
        await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for consumer in consumers:
            consumer.stop_soon()
        await asyncio.gather(*running)
    finally:
        requests.close()


NSQ_TO_HTTP = Tool(options=ToHttpOptions, examples=EXAMPLES, work=work)


def main(argv: Sequence[str] | None = None) -> int:
    return NSQ_TO_HTTP.main(argv)


if __name__ == "__main__":
    sys.exit(main())
