"""`pumpline demo`: the whole story on this machine, with a kill -9 in the middle and a count.

Everything is real: two nsqds and an nsqlookupd as processes of their own, a producer of orders, two
consumers, and Spark keeping the topic as a table. One nsqd is killed with SIGKILL while messages
flow, and comes back. In the end the books must balance, to the message.
"""

import asyncio
import logging
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pumpline.tools.demo.fleet import Fleet
from pumpline.tools.demo.picture import Sample, chart
from pumpline.tools.demo.shop import CHANNEL, TOPIC, Ledger, consume, produce
from pumpline.tools.demo.table import Books, Keeper, why_not

EXIT_OK, EXIT_FAILED = 0, 1
SAMPLE_S = 0.25
DRAIN_S_MAX = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="pumpline demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of publishing (%(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second (%(default)s)")
    parser.add_argument(
        "--picture", default="pumpline-demo.svg", help="where it goes (%(default)s)"
    )
    parser.add_argument("--no-spark", action="store_true", help="the brokers alone")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    console = Console(highlight=False)
    logging.getLogger("pumpline.client").setLevel(logging.CRITICAL)  # the kill is told anyway
    with tempfile.TemporaryDirectory(prefix="pumpline-demo-") as directory:
        try:
            return asyncio.run(Demo(console, Path(directory), arguments).run())
        except (OSError, TimeoutError) as error:
            console.print(f"[red]The demo could not finish:[/] {escape(str(error))}")
            return EXIT_FAILED


class Demo:
    def __init__(self, console: Console, directory: Path, arguments: Namespace) -> None:
        self._console = console
        self._directory = directory
        self._seconds: float = arguments.seconds
        self._rate: int = arguments.rate
        self._picture = Path(arguments.picture)
        self._reason = "--no-spark" if arguments.no_spark else why_not()
        self._keeper = None if self._reason else Keeper(directory / "tables")
        self._ledger = Ledger()
        self._samples: list[Sample] = []
        self._marks: list[tuple[float, str]] = []
        self._began_s = time.monotonic()
        self._published_s = 0.0
        self._step = 0

    async def run(self) -> int:
        with Fleet(self._directory) as fleet:
            first, second = fleet.nsqds
            self._tell(
                f"nsqlookupd on {fleet.lookupd.http_address}, "
                f"nsqds on {first.tcp_address} and {second.tcp_address}"
            )
            for nsqd in fleet.nsqds:
                nsqd.ask(f"/topic/create?topic={TOPIC}", method="POST")
                nsqd.ask(f"/channel/create?topic={TOPIC}&channel={CHANNEL}", method="POST")
            await self._start_archive(fleet)
            try:
                await self._flow(fleet)
                return await self._balance(fleet)
            finally:
                if self._keeper is not None:
                    await asyncio.to_thread(self._keeper.close)

    async def _start_archive(self, fleet: Fleet) -> None:
        if self._keeper is None:
            self._tell(f"No table this time: {self._reason}")
            return
        self._tell("Spark starts, and with it the archive pipeline, which reads the nsqds' logs")
        await asyncio.to_thread(self._keeper.start, fleet.lookupd.http_address, TOPIC)

    async def _flow(self, fleet: Fleet) -> None:
        """Publishing and consuming, with a death in the middle."""
        ledger, stop = self._ledger, asyncio.Event()
        victim = fleet.nsqds[1]
        self._published_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            consumers = [
                tasks.create_task(consume(fleet.lookupd.http_address, ledger)) for _ in range(2)
            ]
            sampler = tasks.create_task(self._sample())
            addresses = [nsqd.tcp_address for nsqd in fleet.nsqds]
            producer = tasks.create_task(produce(addresses, ledger, rate=self._rate, stop=stop))
            self._tell(
                f"{self._rate:,} messages a second are published to topic {TOPIC}, some twice, "
                f"some broken; two consumers share channel {CHANNEL}"
            )
            await asyncio.sleep(self._seconds / 3)
            victim.kill()
            self._mark("kill -9")
            self._tell(
                f"kill -9 of {victim.tcp_address}, {ledger.published:,} messages acknowledged: "
                "the producer goes on with the other one"
            )
            await asyncio.sleep(self._seconds / 3)
            await asyncio.to_thread(victim.start)
            self._mark("back")
            self._tell(f"{victim.tcp_address} is back, with everything it had acknowledged")
            await asyncio.sleep(self._seconds / 3)
            stop.set()
            await producer
            await self._drain(fleet)
            for task in (*consumers, sampler):
                task.cancel()

    async def _drain(self, fleet: Fleet) -> None:
        """Until consumers and archive have had everything."""
        self._tell(f"{self._ledger.published:,} messages are acknowledged; the rest drains")
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while self._ledger.unconsumed and time.monotonic() < deadline_s:
            await asyncio.sleep(SAMPLE_S)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.finish)
        self._samples.append(self._now())

    async def _sample(self) -> None:
        while True:
            self._samples.append(self._now())
            await asyncio.sleep(SAMPLE_S)

    def _now(self) -> Sample:
        read = 0 if self._keeper is None else self._keeper.rows
        ledger = self._ledger
        counts = (ledger.published, sum(ledger.received.values()), read)
        return Sample(time.monotonic() - self._published_s, counts)

    async def _balance(self, fleet: Fleet) -> int:
        ledger = self._ledger
        in_logs = fleet.messages(TOPIC)
        self._console.print(_consumed(ledger))
        balanced = not ledger.unconsumed
        if self._keeper is not None:
            books = await asyncio.to_thread(self._keeper.books)
            self._tell("The table, asked by Spark SQL:")
            self._console.print(_kept(ledger, books, in_logs))
            self._console.print(_by_city(books))
            self._console.print(_quarantined(books))
            balanced = balanced and books.balances(in_logs, ledger.orders)
        names = ("acknowledged", "consumed", "in the table")[: 3 if self._keeper else 2]
        title = "Messages over time, through the death of an nsqd"
        self._picture.write_text(chart(title, names, self._samples, self._marks))
        self._tell(f"A picture of it: {self._picture}")
        if not balanced:
            self._console.print("[red]The books do not balance.[/]")
            return EXIT_FAILED
        self._console.print(
            "[green]The books balance:[/] nothing acknowledged was lost, nothing is in the table "
            "twice."
        )
        return EXIT_OK

    def _tell(self, text: str) -> None:
        self._step += 1
        at_s = time.monotonic() - self._began_s
        self._console.print(f"[bold]{self._step:>2}.[/] [dim]{at_s:5.1f} s[/]  {escape(text)}")

    def _mark(self, text: str) -> None:
        self._marks.append((time.monotonic() - self._published_s, text))


def _consumed(ledger: Ledger) -> Table:
    table = Table("channel", "acknowledged", "received", "again", "lost", title="The consumers")
    received = sum(ledger.received.values())
    again = max(received - ledger.published, 0)
    cells = (ledger.published, received, again, ledger.unconsumed)
    table.add_row(CHANNEL, *(f"{cell:,}" for cell in cells))
    return table


def _kept(ledger: Ledger, books: Books, in_logs: int) -> Table:
    table = Table("", "messages", title="The books")
    missing = len(ledger.orders - books.orders)
    rows = {
        "in the logs of both nsqds": in_logs,
        "in the table, one row an order": books.rows,
        "left out, as the order was there already": books.repeated,
        "in the quarantine": books.quarantined,
        "orders acknowledged": len(ledger.orders),
        "of them not in the table": missing,
        "orders in the table twice": books.rows - len(books.orders),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table


def _by_city(books: Books) -> Table:
    table = Table("city", "orders", "sales", title="SELECT event.city, count(*), sum(event.total)")
    for city, count, total in books.cities:
        table.add_row(city, f"{count:,}", f"{total:,.2f}")
    return table


def _quarantined(books: Books) -> Table:
    table = Table("messages", "reason", "as in", title="The quarantine")
    for count, reason, example in books.reasons:
        table.add_row(f"{count:,}", escape(reason), escape(example))
    return table


if __name__ == "__main__":
    sys.exit(main())
