"""The nsq_stat command: asks all nodes every interval and prints what has changed."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from pumpline.cluster.client import ClusterClient, unique
from pumpline.cluster.options import ClusterOptions
from pumpline.cluster.stats import read_stats
from pumpline.core.text.durations import NS_PER_S
from pumpline.tools.nsq_stat import rows
from pumpline.tools.nsq_stat.options import StatOptions
from pumpline.tools.nsq_stat.rows import Round, StatRow
from pumpline.tools.stdout import Stdout
from pumpline.tools.tool import Signals, Tool, ToolFailure, log

EXAMPLES = """
nsq_stat --topic=orders --channel=billing --lookupd-http-address=127.0.0.1:4161
nsq_stat --topic=orders --channel=billing --interval=10s --count=6 \\
    --nsqd-http-address=127.0.0.1:4151
nsq_stat --topic=orders --all-channels --json --nsqd-http-address=127.0.0.1:4151
"""


class StatPrinter:
    """Rows as NSQ's tool prints them for one channel; with names for several."""

    def __init__(self, options: StatOptions, out: Stdout) -> None:
        self._out = out
        self._is_one = len(options.channel) == 1 and not options.all_channels
        self._is_json = options.json
        self._rounds = 0

    async def print(self, found: list[StatRow]) -> None:
        """The rows of a round; the baseline, which is the first, has none."""
        line: Callable[[StatRow], str] = rows.as_line if self._is_one else rows.as_named_line
        header = rows.HEADER if self._is_one else rows.NAMED_HEADER
        if self._is_json:
            line, header = rows.as_json_line, ""
        is_due = self._rounds % rows.HEADER_EVERY == 0
        self._rounds += 1
        text = "".join([header if is_due else "", *map(line, found)])
        await self._out.write([text.encode()])


class StatRounds:
    def __init__(self, options: StatOptions) -> None:
        timeouts_ns = (
            options.http_client_connect_timeout_ns + options.http_client_request_timeout_ns
        )
        self._options = options
        self._cluster = ClusterClient(
            ClusterOptions(
                nsqd=options.nsqd_http_address,
                lookupd=options.lookupd_http_address,
                token_file=options.token_file,
                timeout_ns=timeouts_ns,
            )
        )

    def ask(self) -> Round:
        """Ask all nodes; ToolFailure if none answers. Blocks."""
        topic = self._options.topic
        found = self._cluster.discover()
        stats = self._cluster.each(unique(found), lambda node: read_stats(node, topic))
        failures = {**found.failures, **stats.failures}
        said = "; ".join(f"{node}: {why}" for node, why in failures.items())
        if not stats.answers:
            raise ToolFailure(f"ERROR: failed to get nsqd stats - failed to query any nsqd: {said}")
        if said:
            log.error("ERROR: failed to get nsqd stats - %s", said)
        return rows.new_round(stats.answers, topic, time.monotonic())

    def rows(self, before: Round, now: Round) -> list[StatRow]:
        options = self._options
        names = sorted(now.channels) if options.all_channels else options.channel
        is_exact = options.json or len(names) > 1 or options.all_channels
        # NSQ's tool divides by the interval, however long a round took.
        elapsed_s = now.at_s - before.at_s if is_exact else options.interval_ns / NS_PER_S
        return [
            rows.new_row(
                options.topic,
                name,
                before.channels.get(name, {}),
                now.channels[name],
                elapsed_s=elapsed_s,
                now_ns=time.time_ns(),
            )
            for name in names
            if name in now.channels
        ]


async def work(options: StatOptions, signals: Signals) -> None:
    rounds = StatRounds(options)
    async with Stdout(signals.stop) as out:
        await _print_rounds(options, signals, rounds, StatPrinter(options, out))


async def _print_rounds(
    options: StatOptions, signals: Signals, rounds: StatRounds, printer: StatPrinter
) -> None:
    before = await asyncio.to_thread(rounds.ask)
    for name in options.channel:
        if name not in before.channels:
            text = f"failed to find channel({name}) in stats metadata for topic({options.topic})"
            raise ToolFailure(f"ERROR: {text}")
    await printer.print([])
    printed = 0
    while not await _is_stopped(signals, options.interval_ns / NS_PER_S):
        try:
            now = await asyncio.to_thread(rounds.ask)
        except ToolFailure as failure:  # they may be back in the next round
            log.error("%s", failure)
            continue
        await printer.print(rounds.rows(before, now))
        before = now
        printed += 1
        if printed == options.rows_max:
            return


async def _is_stopped(signals: Signals, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await signals.stop.wait()
    except TimeoutError:
        return False
    return True


NSQ_STAT = Tool(options=StatOptions, examples=EXAMPLES, work=work)


def main(argv: Sequence[str] | None = None) -> int:
    return NSQ_STAT.main(argv)


if __name__ == "__main__":
    sys.exit(main())
