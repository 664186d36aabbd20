"""The nsq_tail command."""

import asyncio
import random
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pumpline.client import Consumer
from pumpline.cluster.client import ClusterClient, unique
from pumpline.cluster.options import ClusterOptions
from pumpline.tools.nsq_tail.channel_tail import tail_channel
from pumpline.tools.nsq_tail.display import Display
from pumpline.tools.nsq_tail.formats import printer
from pumpline.tools.nsq_tail.log_tail import PEEK_MESSAGES, LogTail, TailRange
from pumpline.tools.nsq_tail.options import TailOptions
from pumpline.tools.stdout import Stdout
from pumpline.tools.tool import Signals, Tool, ToolFailure, log

EXAMPLES = """
nsq_tail --topic=orders --lookupd-http-address=127.0.0.1:4161
nsq_tail --topic=orders -n 1 --nsqd-tcp-address=127.0.0.1:4150
nsq_tail --topic=orders --peek -n 5 --json --nsqd-http-address=127.0.0.1:4151
nsq_tail --topic=orders --from=2026-11-16T08:00:00Z --contains=Hamburg \\
    --format='%o %s\\n' --nsqd-http-address=127.0.0.1:4151
"""


async def work(options: TailOptions, signals: Signals) -> None:
    # stdout and the display set `stop`, too: SIGTERM, a closed pipe and enough messages end it
    # alike.
    async with Stdout(signals.stop) as out:
        display = Display(
            out,
            printer(format=options.format, as_json=options.json, print_topic=options.print_topic),
            count_max=max(options.n, 0),
            contains=options.contains.encode("utf-8", "surrogateescape"),
            stop=signals.stop,
        )
        if options.reads_log:
            await _tail_logs(options, display, signals)
        else:
            await _tail_channels(options, display, signals)


async def _tail_channels(options: TailOptions, display: Display, signals: Signals) -> None:
    channel = options.channel or f"tail{random.randrange(999_999):06d}#ephemeral"
    if 0 < options.n < options.max_in_flight:
        options.max_in_flight = options.n
    consumers: list[Consumer] = []
    for topic in options.topic:
        log.info("Adding consumer for topic: %s", topic)
        # Messages wait for a slow reader of stdout, as long as it takes: they are touched, and not
        # given up, which would finish them unprinted.
        consumers.append(
            options.new_consumer(topic, channel, auto_touch=True, default_attempts_max=0)
        )
    await options.check_nsqds()
    tails = [asyncio.create_task(tail_channel(each, display)) for each in consumers]
    stopped = asyncio.create_task(signals.stop.wait())
    await asyncio.wait({*tails, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for consumer in consumers:
        consumer.stop_soon()
    await asyncio.gather(*tails)


async def _tail_logs(options: TailOptions, display: Display, signals: Signals) -> None:
    wanted = TailRange(
        start=options.from_,
        to=options.to,
        is_peek=options.peek,
        count=options.n or PEEK_MESSAGES,
    )
    cluster = ClusterClient(
        ClusterOptions(
            nsqd=options.nsqd_http_address,
            lookupd=options.lookupd_http_address,
            token_file=options.token_file,
        )
    )
    found = await asyncio.to_thread(cluster.discover)
    for address, failure in found.failures.items():
        log.error("%s: %s", address, failure)
    # A connection for each topic, since a node is used by one thread at a time.
    tails = [
        LogTail(topic, cluster.new_node(node.address), wanted, display).run()
        for node in unique(found)
        for topic in options.topic
    ]
    if not tails:
        raise ToolFailure("there is no nsqd to read from")
    if not await _until_stopped(tails, signals):
        raise ToolFailure(f"no nsqd has a topic {' or '.join(options.topic)}")


async def _until_stopped(tails: list[Coroutine[Any, Any, bool]], signals: Signals) -> bool:
    """Until all are at their end, one fails, or the tool is stopped; False if none had its
    topic."""
    stopped = asyncio.create_task(signals.stop.wait())
    left = {asyncio.create_task(each) for each in tails}
    had_topic = False
    while left and not stopped.done():
        done, _ = await asyncio.wait({*left, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & left:
            had_topic = task.result() or had_topic
        left -= done
    stopped.cancel()
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return had_topic or signals.stop.is_set()


NSQ_TAIL = Tool(options=TailOptions, examples=EXAMPLES, work=work)


def main(argv: Sequence[str] | None = None) -> int:
    return NSQ_TAIL.main(argv)


if __name__ == "__main__":
    sys.exit(main())
